"""What compilers say of programs for accelerators that are not at hand."""
