"""What `bench.gpu` compares with: compilers, transformers, cuBLAS."""
