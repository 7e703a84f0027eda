"""Golden data of the tone curves: the formulas of the HLG curves and of point curves, in numpy float64.

Writes tone.json: log-probabilities, and per case its parameters and the curve's values.
"""
import json
import math
import os

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
A, B, C, EPS = 0.17883277, 0.28466892, 0.55991073, 1e-9


def gamma(luminance):
    return 1.2 + 0.42 * np.log10(luminance / 1000)


def base(lp, pivot):
    if pivot == "top":
        return lp.max()
    p = np.exp(lp)
    if pivot == "entropy":
        return float(np.sum(np.where(p > 0, p * np.where(np.isinf(lp), 0, lp), 0)))
    order = np.sort(lp)[::-1]
    return order[np.searchsorted(np.cumsum(np.exp(order)), 0.5)]


def hlg(lp, temperature=1.0, pivot="top", pivot_offset=6.0, width=4.0, shoulder=4.0, toe=6.0, gain=0.0):
    m = gain or 1 / temperature
    if math.isinf(width) or (shoulder <= 0 and toe <= 0):
        return lp * m
    z = lp - (base(lp, pivot) - pivot_offset)
    out = m * z
    if shoulder > 0:
        bent = m * width + m * shoulder * np.log(np.maximum(1 + (z - width) / shoulder, EPS))
        out = np.where(z >= width, bent, out)
    if toe > 0:
        bent = -m * width - m * toe * np.log(np.maximum(1 + (-z - width) / toe, EPS))
        out = np.where(z < -width, bent, out)
    return np.where(np.isinf(lp), -np.inf, out)


def v(lp):
    e = np.exp(lp - lp.max())
    return np.where(e >= 1 / 12, A * np.log(np.maximum(12 * e - B, EPS)) + C, np.sqrt(3 * e))


def oetf(lp):
    return np.log(np.maximum(v(lp), EPS))


def eotf(lp, luminance=1000.0):
    d = lp - lp.max()
    e = np.exp(d)
    return gamma(luminance) * np.where(e >= 0.5, np.log((np.exp((e - C) / A) + B) / 12), 2 * d - np.log(3))


def pipeline(lp, luminance=1000.0, brightness=5.0):
    return brightness * np.maximum(v(lp), EPS) ** gamma(luminance)


def shaper(lp, luminance=1200.0, window=10.0, x_mid=0.55, y_mid=0.5, x_floor=0.2, y_floor=0.18, power=2.0, slope=0.7,
           shoulder_gain=0.35, target_gap=15.0, ref_gap=4.0, scale=0.0):
    d = x_mid - x_floor
    k = (y_mid - slope * d - y_floor) / d**power
    s = slope + k * power * d ** (power - 1)
    e = (2 * x_floor * y_floor - x_floor**2 * s) / -(x_floor**4)
    f = (x_floor**3 * s - 3 * x_floor**2 * y_floor) / -(x_floor**4)
    a = shoulder_gain
    peak = y_mid + a * np.log(1 + slope / a * (1 - x_mid))

    def r(x):
        high = y_mid + a * np.log(np.maximum(1 + slope / a * (x - x_mid), EPS))
        below = np.maximum(x_mid - x, 0)
        middle = y_mid - slope * below - k * below**power
        y = np.where(x >= x_mid, high, np.where(x >= x_floor, middle, e * x**3 + f * x**2))
        return np.maximum(np.maximum(y, 0) / peak, EPS) ** gamma(luminance)

    scale = scale or target_gap / max(1e-6, 1 - float(r(np.array(1 - ref_gap / window))))
    return scale * r(np.clip((lp - lp.max()) / window + 1, 0, 1))


def curve(lp, points):
    pts = sorted(points)
    x, y = (np.log(np.maximum([p[i] for p in pts], 1e-9) / 100) for i in (0, 1))
    n, sec = len(pts), np.diff(y) / np.diff(x)
    m = [sec[0]]
    for i in range(1, n - 1):
        h1, h2 = x[i] - x[i - 1], x[i + 1] - x[i]
        w1, w2 = 2 * h2 + h1, h2 + 2 * h1
        m.append(0.0 if sec[i - 1] * sec[i] <= 0 else (w1 + w2) / (w1 / sec[i - 1] + w2 / sec[i]))
    m.append(sec[-1])
    out = []
    for q in lp:
        if q <= x[0]:
            out.append(y[0] + max(m[0], 1) * (q - x[0]))
        elif q >= x[-1]:
            out.append(y[-1] + m[-1] * (q - x[-1]))
        else:
            i = int(np.searchsorted(x, q, side="right")) - 1
            h = x[i + 1] - x[i]
            t = (q - x[i]) / h
            out.append((1 + 2 * t) * (1 - t) ** 2 * y[i] + t * (1 - t) ** 2 * h * m[i]
                       + t * t * (3 - 2 * t) * y[i + 1] + t * t * (t - 1) * h * m[i + 1])
    return np.array(out)


def numbers(values):
    return [None if math.isinf(v) else float(v) for v in values]


def main():
    rng = np.random.default_rng(3)
    rows = [np.array([0, -1, -3, -6, -12, -20.0])]
    for spread in (0.7, 3.0, 9.0):
        x = rng.normal(0, spread, 90).astype(np.float32).astype(np.float64)
        x[7] = -np.inf
        rows.append(x - np.log(np.sum(np.exp(x))))
    options = [
        (hlg, {"temperature": 0.7}), (hlg, {"temperature": 1.3, "pivot": "entropy"}),
        (hlg, {"temperature": 0.9, "pivot": "median", "pivot_offset": 2.0}), (hlg, {"gain": 2.5, "toe": 0.0}),
        (hlg, {"temperature": 0.5, "shoulder": 0.0}), (hlg, {"temperature": 0.5, "shoulder": 0.0, "toe": 0.0}),
        (hlg, {"temperature": 0.8, "width": math.inf}), (hlg, {"temperature": 1.0, "width": 0.0}),
        (oetf, {}), (eotf, {}), (eotf, {"luminance": 400.0}), (pipeline, {}),
        (pipeline, {"luminance": 2000.0, "brightness": 9.0}), (shaper, {}), (shaper, {"luminance": 1000.0, "scale": 30.0}),
        (shaper, {"window": 14.0, "power": 1.7, "ref_gap": 2.0}),
    ]
    points = [
        [[0.01, 0.01], [100, 100]], [[0.001, 0.1], [1, 2], [10, 5], [50, 70], [100, 90]],
        [[100, 100], [5, 5], [20, 5], [0, 0.0001]],
    ]
    data = []
    for lp in rows:
        cases = []
        for fn, kw in options:
            named = {k: ("inf" if v == math.inf else v) for k, v in kw.items()}
            cases.append({"kind": fn.__name__, "options": named, "out": numbers(np.where(np.isinf(lp), -np.inf, fn(lp, **kw)))})
        cases += [{"points": p, "out": numbers(np.where(np.isinf(lp), -np.inf, curve(np.where(np.isinf(lp), -50, lp), p)))}
                  for p in points]
        data.append({"lp": numbers(lp), "cases": cases})
    with open(os.path.join(HERE, "tone.json"), "w", encoding="ascii") as f:
        json.dump({"made_by": {"numpy": np.__version__}, "rows": data}, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
