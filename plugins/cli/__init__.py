"""The command ``shunter``, a module for each heavier command."""
