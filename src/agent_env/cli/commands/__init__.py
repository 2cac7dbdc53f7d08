"""One file a command or group of commands; loaded when its name is used (`cli.command_table`)."""
