"""What a run reports: `report.json` and its schema, the HTML page, and progress on the console."""
