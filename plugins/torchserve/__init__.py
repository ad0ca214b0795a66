"""TorchServe: Java sources of the plugin jar, their build, and a host for servers."""
