"""Which input is read: files that a scan would not take, pushed rows, fixed files, input that is lost."""
