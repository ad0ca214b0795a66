"""The controller: settings and policies in, numbers of the control page out."""
