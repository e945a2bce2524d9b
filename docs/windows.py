"""Draws docs/windows.svg: the real pooling weights of three targets with different sizes.

p_ij = exp(l_j - (i-j)^2 / (2 sigma_i^2)) / sum_k (same over k)

Usage: python3 docs/windows.py > docs/windows.svg
"""

from math import exp, sin

TOKENS, STEP, HEIGHT, LEFT, TOP = 64, 10, 130, 20, 58
TARGETS = [(9, 1.0, "#c2410c"), (26, 3.0, "#0f766e"), (48, 6.0, "#4338ca")]
LOG_WEIGHT = [0.6 * sin(0.7 * j) + 0.4 * sin(2.3 * j + 1) for j in range(TOKENS)]


def weights(i: int, sigma: float, log_weight: list[float]) -> list[float]:
    g = [exp(log_weight[j] - (i - j) ** 2 / (2 * sigma**2)) if (i - j) ** 2 <= 160 * sigma**2 else 0.0
         for j in range(TOKENS)]  # fmt: skip
    return [v / sum(g) for v in g]


def text(x: float, y: float, words: str, more: str = 'fill="#111111"') -> str:
    return f'<text x="{x}" y="{y}" {more}>{words}</text>'


def main() -> None:
    width, base = TOKENS * STEP + 2 * LEFT, TOP + HEIGHT
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {base + 66}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{base + 66}" fill="#ffffff"/>',
        text(LEFT, 20, "Each target i averages the tokens around it, by its own size sigma_i and the tokens&#8217; "
             "log weights l_j."),
        text(LEFT, base + 34, f"tokens j = 0 .. {TOKENS - 1}; darker: larger log weight. Bars: the weights p_ij of "
             "three targets, each"),
        text(LEFT, base + 52, "set summing to 1. Lines: the same with equal log weights. A model predicts l_j and "
             "sigma_i."),
    ]  # fmt: skip
    for i, sigma, colour in TARGETS:
        centre = LEFT + STEP * (i + 0.5)
        for j, p in enumerate(weights(i, sigma, LOG_WEIGHT)):
            h = HEIGHT * p / 0.5
            if h > 0.2:
                out.append(f'<rect x="{LEFT + STEP * j + 1}" y="{base - h:.1f}" width="{STEP - 2}" height="{h:.1f}" '
                           f'fill="{colour}" fill-opacity="0.75"/>')  # fmt: skip
        window = enumerate(weights(i, sigma, [0.0] * TOKENS))
        points = [f"{LEFT + STEP * (j + 0.5)} {base - HEIGHT * p / 0.5:.1f}" for j, p in window if p > 1e-4]
        out.append(f'<path d="M{" L".join(points)}" fill="none" stroke="{colour}"/>')
        out.append(text(centre, TOP - 12, f"i = {i}, sigma = {sigma:g}", f'fill="{colour}" text-anchor="middle"'))
        out.append(f'<path d="M{centre} {TOP - 6} V{base}" stroke="{colour}" stroke-dasharray="2 3"/>')
    for j, log_weight in enumerate(LOG_WEIGHT):
        grey = round(170 - 80 * log_weight)
        out.append(f'<rect x="{LEFT + STEP * j + 1}" y="{base + 6}" width="{STEP - 2}" height="{STEP - 2}" '
                   f'fill="rgb({grey},{grey},{grey})"/>')  # fmt: skip
    print("\n".join([*out, "</svg>"]))


if __name__ == "__main__":
    main()
