"""Linear attention by parts: gather chunks of points into slices, merge the states, scatter to all points.

python examples/attention_states.py    a second on two cores

Memory is that of one chunk and of M slices, and no N×M tensor is formed, whatever the number of points N.
"""

import torch

from linearno.ops import dense_linear_attention, gather, merge, scatter


def main(points: int = 3_000) -> None:
    torch.manual_seed(0)
    heads, head_width, slices = 4, 8, 16
    x = torch.randn(1, points, heads, head_width, dtype=torch.float64)  # features (B, N, H, D)
    w_query, w_key = (torch.randn(head_width, slices, dtype=torch.float64) for _ in range(2))  # (D, M)

    states = [gather(chunk, w_key) for chunk in x.split(700, dim=1)]  # ψ(K)ᵀ V of each chunk
    state = merge(*states)  # exact, by log-sum-exp
    out = torch.cat([scatter(chunk, w_query, None, state) for chunk in x.split(700, dim=1)], dim=1)  # φ(Q) S

    dense = dense_linear_attention(x, w_query, w_key)  # the same with the N×N kernel formed
    difference = ((out - dense).abs().max() / dense.abs().max()).item()
    print(f"{len(states)} chunks merged into states of {state.value.numel()} numbers")
    print(f"largest difference from dense attention: {difference:.1e}")


if __name__ == "__main__":
    main()
