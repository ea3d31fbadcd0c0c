"""The CUDA caching allocator, emulated: native code shared with the simulated device, and its use from Python."""
