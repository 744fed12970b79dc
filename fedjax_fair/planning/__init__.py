"""What runs would take on machines that are not there, as their compilers see it."""
