"""The hosts and the roof: configuration, controller, command line. Nobody imports this room."""
