"""ASTRA-sim's semantics (518bd513, 2026-03): workload, system layer, analytical networks. See docs/astra_sim.md."""
