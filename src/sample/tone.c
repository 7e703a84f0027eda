/* tone.c - the formulas of spec engine 2.6 and 2.7. */
#include "sample/tone.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const float EPS = 1e-9f;

qn_tone qn_tone_default(qn_tone_kind kind)
{
    return (qn_tone){
        .kind = kind,
        .pivot_offset = 6, .width = 4, .shoulder = 4, .toe = 6,
        .luminance = kind == QN_TONE_SHAPER ? 1200 : 1000,
        .brightness = 5,
        .window = 10,
        .x_mid = 0.55f, .y_mid = 0.5f, .x_floor = 0.2f, .y_floor = 0.18f,
        .power = 2, .slope = 0.7f, .shoulder_gain = 0.35f,
        .target_gap = 15, .ref_gap = 4,
    };
}

/* ---- what is allowed ---- */

typedef struct bound {
    const char *name;
    float value, lo, hi;
} bound;

static qn_code check_bounds(const bound *b, size_t n, qn_err *err)
{
    for (size_t i = 0; i < n; i++) {
        if (b[i].value >= b[i].lo && b[i].value <= b[i].hi) continue;
        return qn_err_set(err, QN_INVALID, "hlg: %s is %g, must be from %g to %g", b[i].name,
                          (double)b[i].value, (double)b[i].lo, (double)b[i].hi);
    }
    return QN_OK;
}

static qn_code check_shaper(const qn_tone *t, qn_err *err)
{
    const bound b[] = {
        {"window", t->window, 1e-3f, 1e3f},        {"x_mid", t->x_mid, 1e-3f, 1},
        {"y_mid", t->y_mid, 0, 10},                {"x_floor", t->x_floor, 1e-3f, 1},
        {"y_floor", t->y_floor, 0, 10},            {"power", t->power, 1e-3f, 16},
        {"slope", t->slope, 1e-3f, 100},           {"shoulder_gain", t->shoulder_gain, 1e-3f, 100},
        {"target_gap", t->target_gap, 1e-3f, 1e3f}, {"ref_gap", t->ref_gap, 0, t->window},
        {"scale", t->scale, 0, 1e6f},
    };
    qn_code rc = check_bounds(b, sizeof b / sizeof *b, err);
    if (rc || t->x_floor < t->x_mid) return rc;
    return qn_err_set(err, QN_INVALID, "hlg: x_floor is %g, must be below x_mid, %g",
                      (double)t->x_floor, (double)t->x_mid);
}

qn_code qn_tone_check(const qn_tone *t, qn_err *err)
{
    const bound curve[] = {
        {"width", isinf(t->width) && t->width > 0 ? 0 : t->width, 0, 100},
        {"shoulder", t->shoulder, 0, 100},
        {"toe", t->toe, 0, 100},
        {"pivot_offset", t->pivot_offset, 0, 100},
        {"gain", t->gain, 0, 1e6f},
    };
    const bound display[] = {{"luminance", t->luminance, 1, 1e5f},
                             {"brightness", t->brightness, 1e-3f, 1e3f}};
    if (t->kind == QN_TONE_CURVE) return check_bounds(curve, sizeof curve / sizeof *curve, err);
    qn_code rc = QN_OK;
    if (t->kind > QN_TONE_OETF) rc = check_bounds(display, sizeof display / sizeof *display, err);
    return rc || t->kind != QN_TONE_SHAPER ? rc : check_shaper(t, err);
}

/* ---- linear middle, shoulder, toe ---- */

static void sift_down(float *h, uint32_t n, uint32_t i)
{
    float v = h[i];
    for (uint32_t c = 2 * i + 1; c < n; c = 2 * i + 1) {
        if (c + 1 < n && h[c + 1] > h[c]) c++;
        if (h[c] <= v) break;
        h[i] = h[c];
        i = c;
    }
    h[i] = v;
}

/* The log-probability where half of the mass is reached, from the top: a heap of which only as many
 * are taken as that needs. */
static float median(const float *x, uint32_t n, float lse, float *order)
{
    double mass = 0;
    memcpy(order, x, n * sizeof *x);
    for (uint32_t i = n / 2; i-- > 0;) sift_down(order, n, i);
    while (n > 1 && (mass += exp((double)order[0] - lse)) < 0.5) {
        order[0] = order[--n];
        sift_down(order, n, 0);
    }
    return order[0] - lse;
}

static float pivot_base(const qn_tone *t, const float *x, uint32_t n, float max, float lse,
                        float *order)
{
    if (t->pivot == QN_PIVOT_MEDIAN) return median(x, n, lse, order);
    if (t->pivot == QN_PIVOT_TOP) return max - lse;
    double mean = 0;
    for (uint32_t i = 0; i < n; i++) {
        double lp = (double)x[i] - lse;
        if (lp > -100) mean += exp(lp) * lp;
    }
    return (float)mean;
}

/* The curve at distance z from the pivot, with slope m. */
static float curve(const qn_tone *t, float m, float z)
{
    float w = t->width, h = t->shoulder, l = t->toe;
    if (z >= w && h > 0) return m * w + m * h * logf(fmaxf(1 + (z - w) / h, EPS));
    if (z < -w && l > 0) return -m * w - m * l * logf(fmaxf(1 + (-z - w) / l, EPS));
    return m * z;
}

/* ---- the broadcast curves; e = exp(lp - max) in (0, 1] ---- */

static const float A = 0.17883277f, B = 0.28466892f, C = 0.55991073f;

static float system_gamma(float luminance)
{
    return 1.2f + 0.42f * log10f(luminance / 1000);
}

static float oetf(float e)
{
    return e >= 1.0f / 12 ? A * logf(12 * e - B) + C : sqrtf(3 * e);
}

/* d = lp - max. */
static float eotf(float d, float gamma)
{
    float e = expf(d);
    if (e >= 0.5f) return gamma * logf((expf((e - C) / A) + B) / 12);
    return gamma * (2 * d - logf(3));
}

/* ---- the film curve ---- */

typedef struct shaper {
    float k, toe3, toe2, y_peak, gamma, scale;
} shaper;

static shaper make_shaper(const qn_tone *t)
{
    shaper s;
    float x = t->x_floor, y = t->y_floor, d = t->x_mid - x;
    s.k = (t->y_mid - t->slope * d - y) / powf(d, t->power);
    float slope = t->slope + s.k * t->power * powf(d, t->power - 1);
    s.toe3 = (2 * x * y - x * x * slope) / -(x * x * x * x);
    s.toe2 = (x * x * x * slope - 3 * x * x * y) / -(x * x * x * x);
    float a = t->shoulder_gain;
    s.y_peak = t->y_mid + a * logf(1 + t->slope / a * (1 - t->x_mid));
    s.gamma = system_gamma(t->luminance);
    return s;
}

/* The film curve at x in [0, 1], as a part of its peak, with the display's gamma. */
static float shape(const qn_tone *t, const shaper *s, float x)
{
    float a = t->shoulder_gain, below = t->x_mid - x, y;
    if (below <= 0) y = t->y_mid + a * logf(fmaxf(1 - t->slope / a * below, EPS));
    else if (x >= t->x_floor) y = t->y_mid - t->slope * below - s->k * powf(below, t->power);
    else y = (s->toe3 * x + s->toe2) * x * x;
    y = fmaxf(y, 0);
    return powf(fmaxf(y / s->y_peak, EPS), s->gamma);
}

void qn_tone_apply(const qn_tone *t, float temperature, float *out, const float *x, uint32_t n,
                   float max, float lse, float *order)
{
    float m = t->gain > 0 ? t->gain : 1 / temperature, gamma = system_gamma(t->luminance), mu = 0;
    bool linear = t->kind == QN_TONE_CURVE && (isinf(t->width) || (t->shoulder <= 0 && t->toe <= 0));
    if (t->kind == QN_TONE_CURVE && !linear)
        mu = pivot_base(t, x, n, max, lse, order) - t->pivot_offset;
    shaper s = {0};
    if (t->kind == QN_TONE_SHAPER) {
        s = make_shaper(t);
        float gap = 1 - shape(t, &s, fmaxf(1 - t->ref_gap / t->window, 0));
        s.scale = t->scale > 0 ? t->scale : t->target_gap / fmaxf(1e-6f, gap);
    }
    for (uint32_t i = 0; i < n; i++) {
        float lp = x[i] - lse, d = x[i] - max;
        if (!(x[i] > -INFINITY)) {
            out[i] = -INFINITY;
            continue;
        }
        switch (t->kind) {
        case QN_TONE_OFF: out[i] = lp; break;
        case QN_TONE_CURVE: out[i] = linear ? lp * m : curve(t, m, lp - mu); break;
        case QN_TONE_OETF: out[i] = logf(fmaxf(oetf(expf(d)), EPS)); break;
        case QN_TONE_EOTF: out[i] = eotf(d, gamma); break;
        case QN_TONE_PIPELINE:
            out[i] = t->brightness * powf(fmaxf(oetf(expf(d)), EPS), gamma);
            break;
        case QN_TONE_SHAPER:
            out[i] = s.scale * shape(t, &s, fminf(fmaxf(d / t->window + 1, 0), 1));
            break;
        }
    }
}

/* ---- curves through points ---- */

static int by_x(const void *a, const void *b)
{
    const qn_curve_point *p = a, *q = b;
    return (p->x_pct > q->x_pct) - (p->x_pct < q->x_pct);
}

static double coordinate(float pct)
{
    return log(fmax(pct, 1e-9) / 100);
}

/* Slopes at the knots that keep the cubic monotone: weighted harmonic means of the secants. */
static void set_slopes(qn_curve *c, const double *secant)
{
    uint32_t n = c->n;
    c->slope[0] = secant[0];
    c->slope[n - 1] = secant[n - 2];
    for (uint32_t i = 1; i + 1 < n; i++) {
        double a = secant[i - 1], b = secant[i];
        double left = c->x[i] - c->x[i - 1], right = c->x[i + 1] - c->x[i];
        double w1 = 2 * right + left, w2 = right + 2 * left;
        c->slope[i] = a * b <= 0 ? 0 : (w1 + w2) / (w1 / a + w2 / b);
    }
}

qn_code qn_curve_make(qn_curve *c, const qn_curve_point *points, size_t n, qn_err *err)
{
    qn_curve_point sorted[QN_MAX_CURVE_POINTS];
    double secant[QN_MAX_CURVE_POINTS];
    *c = (qn_curve){0};
    if (n < 2 || n > QN_MAX_CURVE_POINTS)
        return qn_err_set(err, QN_INVALID, "the curve has %zu points, must have from 2 to %d", n,
                          QN_MAX_CURVE_POINTS);
    for (size_t i = 0; i < n; i++) {
        float x = points[i].x_pct, y = points[i].y_pct;
        if (!(x >= 0 && x <= 100 && y >= 0 && y <= 100))
            return qn_err_set(err, QN_INVALID,
                              "point %zu of the curve is (%g, %g), must be percentages", i,
                              (double)x, (double)y);
        sorted[i] = points[i];
    }
    qsort(sorted, n, sizeof *sorted, by_x);
    for (size_t i = 0; i < n; i++) {
        c->x[i] = coordinate(sorted[i].x_pct);
        c->y[i] = coordinate(sorted[i].y_pct);
        if (i == 0) continue;
        if (c->x[i] == c->x[i - 1])
            return qn_err_set(err, QN_INVALID, "two points of the curve lie at %g percent",
                              (double)sorted[i].x_pct);
        secant[i - 1] = (c->y[i] - c->y[i - 1]) / (c->x[i] - c->x[i - 1]);
        if (!(secant[i - 1] >= -1e-12))
            return qn_err_set(err, QN_INVALID,
                              "the curve falls between %g and %g percent; it must not",
                              (double)sorted[i - 1].x_pct, (double)sorted[i].x_pct);
    }
    c->n = (uint32_t)n;
    set_slopes(c, secant);
    return QN_OK;
}

static double curve_at(const qn_curve *c, double x)
{
    uint32_t last = c->n - 1, lo = 0, hi = last;
    if (x <= c->x[0]) return c->y[0] + fmax(c->slope[0], 1) * (x - c->x[0]);
    if (x >= c->x[last]) return c->y[last] + c->slope[last] * (x - c->x[last]);
    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;
        if (c->x[mid] <= x) lo = mid;
        else hi = mid;
    }
    double h = c->x[hi] - c->x[lo], t = (x - c->x[lo]) / h, t2 = t * t, t3 = t2 * t;
    return (2 * t3 - 3 * t2 + 1) * c->y[lo] + (t3 - 2 * t2 + t) * h * c->slope[lo] +
           (3 * t2 - 2 * t3) * c->y[hi] + (t3 - t2) * h * c->slope[hi];
}

void qn_curve_apply(const qn_curve *c, float *out, const float *x, uint32_t n, float lse)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = x[i] > -INFINITY ? (float)curve_at(c, (double)x[i] - lse) : -INFINITY;
}
