/* tone.h - curves that bend log-probabilities before a draw (spec engine 2.6, 2.7).
 *
 * A tone curve takes the place of filters and temperature: log-probabilities near a pivot are
 * scaled, those far above and below are rolled off, as video cameras do with light (HLG). A point
 * curve maps percentages to percentages through points that the caller draws.
 * Threads: the functions keep nothing; a qn_curve is read only once it is made.
 */
#ifndef QN_SAMPLE_TONE_H
#define QN_SAMPLE_TONE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

enum { QN_MAX_CURVE_POINTS = 64 };

typedef enum qn_tone_kind {
    QN_TONE_OFF = 0,
    QN_TONE_CURVE,    /* linear around the pivot, logarithmic shoulder and toe */
    QN_TONE_OETF,     /* the camera's curve */
    QN_TONE_EOTF,     /* the display's curve, at `luminance` */
    QN_TONE_PIPELINE, /* the camera's, then the display's up to `brightness` */
    QN_TONE_SHAPER    /* toe, straight part and shoulder of film */
} qn_tone_kind;

typedef enum qn_tone_pivot {
    QN_PIVOT_TOP = 0, /* the largest log-probability */
    QN_PIVOT_ENTROPY, /* their mean */
    QN_PIVOT_MEDIAN   /* the one where half of the probability is reached from the top */
} qn_tone_pivot;

/* Take defaults from qn_tone_default and change fields; all in nats unless said. */
typedef struct qn_tone {
    qn_tone_kind kind;
    /* CURVE */
    qn_tone_pivot pivot;
    float pivot_offset;        /* the pivot lies this far below its base */
    float width;               /* half-width of the linear part; infinity: linear throughout */
    float shoulder, toe;       /* lengths of the roll-offs; 0: linear there too */
    float gain;                /* slope; 0: 1 / temperature */
    /* EOTF, PIPELINE, SHAPER */
    float luminance;           /* nominal peak of the display, cd/m^2 */
    float brightness;          /* PIPELINE: factor of the result */
    /* SHAPER */
    float window;              /* log-probabilities from the top that the curve spans */
    float x_mid, y_mid, x_floor, y_floor; /* knots, in parts of the window and of the output */
    float power, slope, shoulder_gain;    /* below the middle; at it; above it */
    float target_gap, ref_gap; /* distance of the result `ref_gap` below the top from the top */
    float scale;               /* of the result; 0: as target_gap and ref_gap ask */
} qn_tone;

/* A curve of a kind with the defaults of its fields (no failure). */
qn_tone qn_tone_default(qn_tone_kind kind);

/* QN_OK if the fields that its kind uses are in range. Errors: QN_INVALID, naming the field. */
qn_code qn_tone_check(const qn_tone *t, qn_err *err);

/* out[i] = the curve at x[i], i < n. x are logits; x - lse are log-probabilities, `max` is the
 * largest of x. order [n] is scratch, only used with QN_PIVOT_MEDIAN. -inf stays -inf (no failure).
 */
void qn_tone_apply(const qn_tone *t, float temperature, float *out, const float *x, uint32_t n,
                   float max, float lse, float *order);

/* A point of a curve: a token of x_pct percent is treated as one of y_pct percent, before what
 * results is normalized. */
typedef struct qn_curve_point {
    float x_pct, y_pct;
} qn_curve_point;

/* A monotone cubic through points, in log-probabilities. */
typedef struct qn_curve {
    uint32_t n; /* 0: none */
    double x[QN_MAX_CURVE_POINTS], y[QN_MAX_CURVE_POINTS], slope[QN_MAX_CURVE_POINTS];
} qn_curve;

/* Make a curve from 2 to QN_MAX_CURVE_POINTS points in any order. Errors: QN_INVALID (their number,
 * a percentage outside 0 to 100, two points at one x, a curve that falls). */
qn_code qn_curve_make(qn_curve *c, const qn_curve_point *points, size_t n, qn_err *err);

/* out[i] = the curve at x[i] - lse, i < n; -inf stays -inf (no failure). */
void qn_curve_apply(const qn_curve *c, float *out, const float *x, uint32_t n, float lse);

#endif
