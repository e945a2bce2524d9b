"""Draws docs/mixers.svg: how much each token counts for three targets, by kind of mixer, in one channel.

Canon and dynamic: [k = i] + w_k (+ v_k(h_i)), four causal taps; ContextPool: p_ij of a causal window of size sigma_i.

Usage: python3 docs/mixers.py > docs/mixers.svg
"""

from math import exp

TOKENS, STEP, HEIGHT, LEFT, TOP, GAP = 60, 10, 44, 150, 44, 66
TARGETS = [(12, "#c2410c"), (30, "#0f766e"), (52, "#4338ca")]
TAPS = [0.25, -0.45, 0.35, 0.2]  # of the tokens i - 3 .. i
CHANGES = [[-0.35, 0.65, -0.1, -0.7], [0.3, -0.25, 0.4, 0.3], [-0.1, 0.35, -0.75, 0.1]]  # v_k for the three targets
SIGMA = [0.7, 3.0, 9.0]


def taps(i: int, change: list[float]) -> dict[int, float]:
    counts = {i - 3 + k: w + v for k, (w, v) in enumerate(zip(TAPS, change, strict=True))}
    counts[i] += 1
    return counts


def window(i: int, sigma: float) -> dict[int, float]:
    g = {j: exp(-((i - j) ** 2) / (2 * sigma**2)) for j in range(i + 1) if (i - j) ** 2 <= 160 * sigma**2}
    return {j: v / sum(g.values()) for j, v in g.items()}


ROWS = [
    ("canon", "the same for all tokens", [taps(i, [0.0] * 4) for i, _ in TARGETS]),
    ("dynamic", "taps that the token chooses", [taps(i, v) for (i, _), v in zip(TARGETS, CHANGES, strict=True)]),
    ("context_pool", "a window that it chooses", [window(i, s) for (i, _), s in zip(TARGETS, SIGMA, strict=True)]),
]


def text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="#111111" {more}>{words}</text>'


def main() -> None:
    width, height = LEFT + TOKENS * STEP + 20, TOP + len(ROWS) * (HEIGHT + GAP)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        text(LEFT, 20, "How much each token counts for three targets, in one channel; below the line: less than 0."),
    ]
    for row, (name, words, targets) in enumerate(ROWS):
        base = TOP + row * (HEIGHT + GAP) + HEIGHT
        out.append(text(10, base - 18, name, 'font-weight="bold"'))
        out.append(text(10, base - 2, words, 'font-size="11"'))
        out.append(f'<path d="M{LEFT} {base} H{LEFT + TOKENS * STEP}" stroke="#999999"/>')
        for (i, colour), counts in zip(TARGETS, targets, strict=True):
            for j, share in counts.items():
                h = HEIGHT * abs(share) / 1.3
                if h < 0.2:
                    continue
                y = base - h if share > 0 else base
                out.append(f'<rect x="{LEFT + STEP * j + 1}" y="{y:.1f}" width="{STEP - 2}" height="{h:.1f}" '
                           f'fill="{colour}" fill-opacity="0.75"/>')  # fmt: skip
            out.append(text(LEFT + STEP * (i + 0.5), base + 38, f"i = {i}", 'text-anchor="middle" font-size="11"'))
    print("\n".join([*out, "</svg>"]))


if __name__ == "__main__":
    main()
