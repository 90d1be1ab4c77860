"""Operations for GPUs, each with its reference in plain PyTorch; one folder per operation."""
