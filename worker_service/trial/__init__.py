"""A worker of a study: trains trials one after the other, each in this process alone, without any ps."""
