"""What measures and torments hyperpod-kit: torture, benches, simulated fleets."""
