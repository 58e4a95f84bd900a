"""What kernels of shuffled codes share, whatever the width of the codes."""
