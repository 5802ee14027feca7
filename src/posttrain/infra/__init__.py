"""What the lab stands on: processes, sandbox, files, settings, resources, tool environments."""
