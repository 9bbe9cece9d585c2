"""Of an elastoplastic body, by kind."""


def energies(body):
    """Kinetic, elastic, plastic, and that of hourglass modes."""
    m, volume = body.material, body.spacing**2
    p, d, s = body.stress.unbind(1)
    kinetic = (body.velocity.square().sum(dim=1) * body.dt / body.dt_over_mass[:, 0]).sum() / 2
    elastic = volume * (p**2 / m.biaxial_modulus + (d**2 + s**2) / (2 * m.shear_modulus)).sum()
    plastic = volume * (m.yield_stress * body.plastic + m.hardening * body.plastic**2 / 2).sum()
    bending = 6 * body.hourglass_force.square().sum() / (body.hourglass * m.young)
    return kinetic.item(), elastic.item(), plastic.item(), bending.item()
