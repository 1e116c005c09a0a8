"""The report of a run: the schema of `report.json`, its checks, the HTML page, and progress on the console."""
