"""The meaning of the CPU kernels in NumPy, equal to them bit for bit.

May import simd, cpu and the hall.
"""
