import random, sys, time
import torch
from phantora.compute.sweep.case import Maker
from phantora.compute.sweep.measure import sweep
from phantora.compute.sweep.standard import standard_cases
t=time.time()
cases = standard_cases(Maker())
a, b = int(sys.argv[3]), int(sys.argv[4])
with open(sys.argv[1], "w") as f:
    print(sweep(cases[a:b], f, float(sys.argv[2])), "of", len(cases), "in", time.time()-t)
