"""The engines that a server can serve. Each is imported by name, when it is asked for."""
