/* ref_select.c - introselect with the choices of libstdc++'s nth_element (spec numerics 8): which
 * elements are compared and swapped decides the order of the k largest, and experts' results are
 * summed in that order. */
#include "compute/ref/ref_select.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

typedef struct order {
    uint32_t *idx;
    const float *values;
} order;

/* Element a comes before element b. */
static bool before(const order *o, uint32_t a, uint32_t b)
{
    float x = o->values[a], y = o->values[b];
    if (isnan(x) || isnan(y)) return isnan(x) == isnan(y) ? a < b : isnan(y);
    return x < y || (x == y && a < b);
}

static bool less(const order *o, uint32_t i, uint32_t j) { return before(o, o->idx[i], o->idx[j]); }

static void swap(const order *o, uint32_t i, uint32_t j)
{
    uint32_t t = o->idx[i];
    o->idx[i] = o->idx[j];
    o->idx[j] = t;
}

/* ---- the heap, for inputs that defeat the partition ---- */

/* Put v into the hole at `hole` of the heap [first, first+n): the hole sinks along the larger
 * children to the bottom, then v rises. */
static void sift(const order *o, uint32_t first, uint32_t hole, uint32_t n, uint32_t v)
{
    uint32_t *h = o->idx + first, top = hole, child = hole;
    while (child < (n - 1) / 2) {
        child = 2 * (child + 1);
        if (before(o, h[child], h[child - 1])) child--;
        h[hole] = h[child];
        hole = child;
    }
    if (n % 2 == 0 && child == (n - 2) / 2) {
        child = 2 * child + 1;
        h[hole] = h[child];
        hole = child;
    }
    while (hole > top && before(o, h[(hole - 1) / 2], v)) {
        h[hole] = h[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    h[hole] = v;
}

/* [first, middle) holds the smallest of [first, last), the largest of them first. */
static void heap_select(const order *o, uint32_t first, uint32_t middle, uint32_t last)
{
    uint32_t n = middle - first;
    for (uint32_t i = n / 2; n > 1 && i-- > 0;) sift(o, first, i, n, o->idx[first + i]);
    for (uint32_t i = middle; i < last; i++) {
        if (!less(o, i, first)) continue;
        uint32_t v = o->idx[i];
        o->idx[i] = o->idx[first];
        sift(o, first, 0, n, v);
    }
}

/* ---- partition and insertion ---- */

static void median_to(const order *o, uint32_t to, uint32_t a, uint32_t b, uint32_t c)
{
    if (less(o, a, b)) swap(o, to, less(o, b, c) ? b : less(o, a, c) ? c : a);
    else swap(o, to, less(o, a, c) ? a : less(o, b, c) ? c : b);
}

/* Hoare's partition of [first, last) around the element at `pivot`; the median guards both ends. */
static uint32_t partition(const order *o, uint32_t first, uint32_t last, uint32_t pivot)
{
    for (;;) {
        while (less(o, first, pivot)) first++;
        last--;
        while (less(o, pivot, last)) last--;
        if (first >= last) return first;
        swap(o, first, last);
        first++;
    }
}

static void insertion_sort(const order *o, uint32_t first, uint32_t last)
{
    for (uint32_t i = first + 1; i < last; i++) {
        uint32_t v = o->idx[i], j = i;
        while (j > first && before(o, v, o->idx[j - 1])) j--;
        memmove(o->idx + j + 1, o->idx + j, (i - j) * sizeof v);
        o->idx[j] = v;
    }
}

void qn_ref_argpartition(uint32_t *idx, const float *values, uint32_t n, uint32_t nth)
{
    order o = {idx, values};
    uint32_t first = 0, last = n, depth = 0;
    while (n >> (depth + 1)) depth++;
    depth *= 2;
    while (last - first > 3) {
        if (depth-- == 0) {
            heap_select(&o, first, nth + 1, last);
            swap(&o, first, nth);
            return;
        }
        uint32_t mid = first + (last - first) / 2;
        median_to(&o, first, first + 1, mid, last - 1);
        uint32_t cut = partition(&o, first + 1, last, first);
        if (cut <= nth) first = cut;
        else last = cut;
    }
    insertion_sort(&o, first, last);
}
