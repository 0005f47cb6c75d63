"""One thread for all tests: they are small, and threads that wait for each other are slow."""

import torch

torch.set_num_threads(1)
