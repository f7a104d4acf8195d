"""The web server around the application: connections, signals, open files."""
