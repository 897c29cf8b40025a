/* A float32 number is its 32 bits, a code an integer counted from its zero point. */
typedef uint32_t real;

#define SIGN 0x80000000u
#define EACH(i, n) for (i = 0; i < (n); i++)

/* Bits up to the highest that is set. */
static int width(uint64_t v) {
#ifdef __GNUC__
    return v ? 64 - __builtin_clzll(v) : 0;
#else
    int n = 0, s;
    for (s = 32; s; s >>= 1)
        if (v >> s) n += s, v >>= s;
    return n + (int)v;
#endif
}

/* v / 2^s as a whole number, ties to even. */
static uint64_t shifted(uint64_t v, int s) {
    uint64_t half, rest;
    if (s <= 0) return v << -s;
    if (s > 63) return 0;
    half = (uint64_t)1 << (s - 1);
    rest = v & (2 * half - 1);
    return (v >> s) + (rest > half || (rest == half && ((v >> s) & 1)));
}

/* The number next to m 2^e, rounded once, subnormal ones too. */
static real pack(real sign, uint64_t m, int e) {
    int s = width(m) - 24;
    if (e + s < -149) s = -149 - e;
    m = shifted(m, s);
    e += s + 149;
    if (!m) return sign;
    return e > 253 ? sign | 0x7f800000u : sign | (((uint32_t)e << 23) + (uint32_t)m);
}

/* a is this times 2^(e - 150). */
static uint32_t mantissa(real a, int *e) {
    *e = (int)((a >> 23) & 255);
    if (*e) return (a & 0x7fffffu) | 0x800000u;
    *e = 1;
    return a & 0x7fffffu;
}

static real multiply(real a, real b) {
    int ea, eb;
    uint64_t m = mantissa(a, &ea);
    m *= mantissa(b, &eb);
    return pack((a ^ b) & SIGN, m, ea + eb - 300);
}

static real add(real a, real b) {
    int ea, eb, d;
    uint64_t ma, mb;
    real low = (a & ~SIGN) < (b & ~SIGN) ? a : b;
    a ^= b ^ low;
    ma = (uint64_t)mantissa(a, &ea) << 32;
    mb = (uint64_t)mantissa(low, &eb) << 32;
    d = ea - eb;
    mb = d > 55 ? mb != 0 : (mb >> d) | ((mb & (((uint64_t)1 << d) - 1)) != 0);
    ma = (a ^ low) & SIGN ? ma - mb : ma + mb;
    return pack(ma ? a & SIGN : a & low & SIGN, ma, ea - 182);
}

static real divide(real a, real b) {
    int ea, eb, s;
    uint64_t m = mantissa(a, &ea), d = mantissa(b, &eb);
    if (!m) return (a ^ b) & SIGN;
    s = 64 - width(m);
    m <<= s;
    return pack((a ^ b) & SIGN, (m / d) | (m % d != 0), ea - eb - s);
}

/* Of a positive normal number. */
static real square_root(real a) {
    int e, i;
    uint64_t m = mantissa(a, &e), root = 0, bit = (uint64_t)1 << 56;
    int odd = (e - 150) & 1;
    m <<= 30 + odd;
    EACH(i, 29) {
        uint64_t more = root + bit;
        root >>= 1;
        if (m >= more) m -= more, root += bit;
        bit >>= 2;
    }
    return pack(0, (root << 1) | (m != 0), (e - 180 - odd) / 2 - 1);
}

static int less(real a, real b) {
    int32_t x = (int32_t)(a & ~SIGN), y = (int32_t)(b & ~SIGN);
    return (a & SIGN ? -x : x) < (b & SIGN ? -y : y);
}

static real within(real a, real low, real high) {
    a = less(a, low) ? low : a;
    return less(high, a) ? high : a;
}

static real of_integer(int32_t v) {
    return pack(v < 0 ? SIGN : 0, v < 0 ? (uint64_t)-(int64_t)v : (uint64_t)v, 0);
}

/* The whole number next to a, ties to even, from low to high. */
static int32_t whole(real a, int32_t low, int32_t high) {
    int e;
    uint64_t m = mantissa(a, &e);
    int64_t v = e > 180 ? (int64_t)1 << 40 : (int64_t)shifted(m, 150 - e);
    v = a & SIGN ? -v : v;
    return v < low ? low : v > high ? high : (int32_t)v;
}

/* whole(of_integer(sum) m): one product, unless it lies so near a tie that its rounding may decide. */
static int32_t requantized(int32_t sum, real m, int32_t low, int32_t high) {
    int s = 150 - (int)(m >> 23);
    uint64_t product, half, rest;
    int64_t v;
    if (s < 1 || s > 60) return whole(multiply(of_integer(sum), m), low, high);
    half = (uint64_t)1 << (s - 1);
    product = (uint64_t)((int64_t)sum * (int64_t)((m & 0x7fffffu) | 0x800000u)) + ((uint64_t)1 << 62) + half;
    rest = product & (2 * half - 1);
    if (rest <= half >> 12 || rest >= 2 * half - (half >> 12))
        return whole(multiply(of_integer(sum), m), low, high);
    v = (int64_t)(product >> s) - ((int64_t)1 << (62 - s));
    return v < low ? low : v > high ? high : (int32_t)v;
}

/* Weights of 4 bits: column j is the low half of byte j, column j + (k + 1) / 2 the high one, each 8 too large. */
static int32_t product(int bits, int k, const int8_t w[(k * bits + 7) / 8], const int16_t x[k]) {
    int32_t sum = 0;
    int j, half = (k + 1) / 2, rest = k - half;
    if (bits == 8) {
        EACH(j, k) sum += (int32_t)w[j] * x[j];
        return sum;
    }
    EACH(j, half) sum += (int32_t)(((uint8_t)w[j] & 15) - 8) * x[j];
    EACH(j, rest) sum += (int32_t)(((uint8_t)w[j] >> 4) - 8) * x[half + j];
    return sum;
}

/* No number is NaN or infinite. */
static int all_finite(int n, const real x[n]) {
    int i, bad = 0;
    EACH(i, n) bad += ((x[i] >> 23) & 255) == 255;
    return !bad;
}

static void scale(int n, const real x[n], const real factor[n], real y[n]) {
    int i;
    EACH(i, n) y[i] = multiply(x[i], factor[i]);
}

static void sum(int n, const real a[n], const real b[n], real y[n]) {
    int i;
    EACH(i, n) y[i] = add(a[i], b[i]);
}

static void clip(int n, const real x[n], real low, real high, real y[n]) {
    int i;
    EACH(i, n) y[i] = within(x[i], low, high);
}

static void quantize(int n, const real x[n], real step, int low, int high, int16_t y[n]) {
    int i;
    EACH(i, n) y[i] = (int16_t)whole(divide(x[i], step), low, high);
}

/* By the reciprocal of a step that is a power of two. */
static void quantize_shift(int n, const real x[n], real inverse, int low, int high, int16_t y[n]) {
    int i;
    EACH(i, n) y[i] = (int16_t)whole(multiply(x[i], inverse), low, high);
}

static void quantize_bytes(int n, const uint8_t x[n], const int8_t code[256], int zero, int16_t y[n]) {
    int i;
    EACH(i, n) y[i] = (int16_t)(code[x[i]] - zero);
}

static void dequantize(int n, const int16_t x[n], real step, real y[n]) {
    int i;
    EACH(i, n) y[i] = multiply(of_integer(x[i]), step);
}

static void look_up(int n, const int16_t x[n], int first, const int8_t code[256], int zero, int16_t y[n]) {
    int i;
    EACH(i, n) y[i] = (int16_t)(code[(x[i] - first) & 255] - zero);
}

/* Codes of w x + b, each `step` places after the one before. */
static void dense(int bits, int n, int k, const int8_t w[n * ((k * bits + 7) / 8)], const int32_t b[n], const real m[n],
                  const int16_t x[k], int low, int high, int step, int16_t y[(n - 1) * step + 1]) {
    int i, row = (k * bits + 7) / 8;
    EACH(i, n) y[i * step] = (int16_t)requantized(b[i] + product(bits, k, w + i * row, x), m[i], low, high);
}

static void last(int bits, int n, int k, const int8_t w[n * ((k * bits + 7) / 8)], const real unit[n], const real b[n],
                 const int16_t x[k], real y[n]) {
    int i, row = (k * bits + 7) / 8;
    EACH(i, n) y[i] = add(multiply(of_integer(product(bits, k, w + i * row, x)), unit[i]), b[i]);
}

/* The window of an image [c][h][wide] that begins at (top, left), zeros around the image, as a row. */
static void window(int c, int h, int wide, int kh, int kw, int top, int left, const int16_t x[c * h * wide],
                   int16_t row[c * kh * kw]) {
    int i, u, v;
    for (i = 0; i < c; i++, x += h * wide)
        for (u = top; u < top + kh; u++)
            for (v = left; v < left + kw; v++)
                *row++ = u < 0 || u >= h || v < 0 || v >= wide ? 0 : x[u * wide + v];
}

static void convolve(int bits, int n, int c, int h, int wide, int kh, int kw, int sh, int sw, int ph, int pw, int oh,
                     int ow, const int8_t w[n * ((c * kh * kw * bits + 7) / 8)], const int32_t b[n], const real m[n],
                     const int16_t x[c * h * wide], int low, int high, int16_t row[c * kh * kw],
                     int16_t y[n * oh * ow]) {
    int u, v;
    EACH(u, oh) EACH(v, ow) {
        window(c, h, wide, kh, kw, u * sh - ph, v * sw - pw, x, row);
        dense(bits, n, c * kh * kw, w, b, m, row, low, high, oh * ow, y + u * ow + v);
    }
}

/* Distances from the whole number next to the mean, so that all sums are of small integers. */
static void layer_norm(int n, const int16_t x[n], real share, real epsilon, const real gain[n], const real offset[n],
                       real y[n]) {
    int32_t total = 0, rest = 0, squares = 0, centre;
    real mean, variance, root, deviation;
    int i;
    EACH(i, n) total += x[i];
    centre = whole(multiply(of_integer(total), share), -32768, 32767);
    EACH(i, n) {
        int32_t d = x[i] - centre;
        rest += d;
        squares += d * d;
    }
    mean = multiply(of_integer(rest), share);
    variance = add(multiply(of_integer(squares), share), multiply(mean, mean) ^ SIGN);
    variance = add(variance, epsilon);
    root = square_root(variance);
    deviation = multiply(add(root, divide(variance, root)), 0x3f000000u);
    EACH(i, n) {
        real near = divide(add(of_integer(x[i] - centre), mean ^ SIGN), deviation);
        y[i] = add(multiply(near, gain[i]), offset[i]);
    }
}

/* Numbers divided by their length; `least` is the smallest sum of squares. */
static void l2_norm(int n, const int16_t x[n], real least, real y[n]) {
    int32_t squares = 0;
    real total, root;
    int i;
    EACH(i, n) squares += (int32_t)x[i] * x[i];
    total = of_integer(squares);
    if (less(total, least)) total = least;
    root = square_root(total);
    root = multiply(add(root, divide(total, root)), 0x3f000000u);
    EACH(i, n) y[i] = divide(of_integer(x[i]), root);
}

/* The number of the largest of n scores, which are counted from `start`. */
static void argmax(int n, const real x[n], int start, int32_t y[1]) {
    int i, best = 0;
    EACH(i, n) if (less(x[best], x[i])) best = i;
    y[0] = start + best;
}

static void positive(int n, const real x[n], int32_t y[n]) {
    int i;
    EACH(i, n) y[i] = less(0, x[i]);
}

/* tanh by exp(-2 |x|): as many halvings as log 2 fits into 2 |x|, and the series of exp for what is left. */
static void squash(int n, const real x[n], real low, real high, real range, real y[n]) {
    const uint64_t unit = (uint64_t)1 << 30, log2 = 744261118u;
    int i, k;
    EACH(i, n) {
        uint64_t rest = (uint64_t)whole(multiply(x[i] & ~SIGN, 0x4d000000u), 0, INT32_MAX) * 16, power = unit;
        int halvings = (int)(rest / log2);
        real share;
        rest %= log2;
        for (k = 10; k; k--) power = unit - ((rest * power) >> 30) / (uint64_t)k;
        power >>= halvings;
        share = pack(x[i] & SIGN, ((unit - power) << 30) / (unit + power), -30);
        share = multiply(add(share, 0x3f800000u), 0x3f000000u);
        y[i] = within(add(multiply(share, range), low), low, high);
    }
}
