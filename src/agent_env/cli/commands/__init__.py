"""One file a command or group of commands; loaded when its name is used (`cli.table`)."""
