"""Tables and figures of Hu et al. (2026), https://arxiv.org/abs/2511.06294, as commands."""
