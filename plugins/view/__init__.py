"""What people see: status tables and plots."""
