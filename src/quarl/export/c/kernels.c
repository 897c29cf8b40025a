/* A float32 number is its 32 bits, a code an integer counted from its zero point. */
typedef uint32_t real;

#define SIGN 0x80000000u

/* Bits up to the highest that is set. */
static int width(uint64_t v) {
    int n = 0, s;
    for (s = 32; s; s >>= 1)
        if (v >> s) {
            n += s;
            v >>= s;
        }
    return n + (int)v;
}

/* v / 2^s as a whole number, ties to even. */
static uint64_t shifted(uint64_t v, int s) {
    uint64_t half, rest;
    if (s <= 0)
        return v << -s;
    if (s > 63)
        return 0;
    half = (uint64_t)1 << (s - 1);
    rest = v & (2 * half - 1);
    return (v >> s) + (rest > half || (rest == half && ((v >> s) & 1)));
}

/* The number next to m 2^e, rounded once, subnormal ones too. */
static real pack(real sign, uint64_t m, int e) {
    int s = width(m) - 24;
    if (e + s < -149)
        s = -149 - e;
    m = shifted(m, s);
    e += s + 149;
    if (!m)
        return sign;
    return e > 253 ? sign | 0x7f800000u : sign | (((uint32_t)e << 23) + (uint32_t)m);
}

/* a is this times 2^(e - 150). */
static uint32_t mantissa(real a, int *e) {
    *e = (int)((a >> 23) & 255);
    if (*e)
        return (a & 0x7fffffu) | 0x800000u;
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
    if ((a & ~SIGN) < (b & ~SIGN)) {
        real larger = b;
        b = a;
        a = larger;
    }
    ma = (uint64_t)mantissa(a, &ea) << 32;
    mb = (uint64_t)mantissa(b, &eb) << 32;
    d = ea - eb;
    mb = d > 55 ? mb != 0 : (mb >> d) | ((mb & (((uint64_t)1 << d) - 1)) != 0);
    ma = (a ^ b) & SIGN ? ma - mb : ma + mb;
    return pack(ma ? a & SIGN : a & b & SIGN, ma, ea - 182);
}

static real divide(real a, real b) {
    int ea, eb, s;
    uint64_t m = mantissa(a, &ea), d = mantissa(b, &eb);
    s = 64 - width(m);
    if (s > 63)
        return (a ^ b) & SIGN;
    m <<= s;
    return pack((a ^ b) & SIGN, (m / d) | (m % d != 0), ea - eb - s);
}

/* Of a positive normal number. */
static real square_root(real a) {
    int e, i;
    uint64_t m = mantissa(a, &e), root = 0, bit = (uint64_t)1 << 56;
    e -= 150;
    m <<= 30 + (e & 1);
    e -= 30 + (e & 1);
    for (i = 0; i < 29; i++, bit >>= 2) {
        int fits = m >= root + bit;
        if (fits)
            m -= root + bit;
        root = (root >> 1) + (fits ? bit : 0);
    }
    return pack(0, (root << 1) | (m != 0), e / 2 - 1);
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
    int64_t v = mantissa(a, &e);
    v = e > 180 ? (int64_t)1 << 40 : (int64_t)shifted((uint64_t)v, 150 - e);
    v = a & SIGN ? -v : v;
    return v < low ? low : v > high ? high : (int32_t)v;
}

/* whole(of_integer(sum) m): one product, unless it lies so near a tie that its rounding may decide. */
static int32_t requantized(int32_t sum, real m, int32_t low, int32_t high) {
    int s = 150 - (int)(m >> 23);
    uint64_t product, half, rest;
    int64_t v;
    if (s < 1 || s > 60)
        return whole(multiply(of_integer(sum), m), low, high);
    half = (uint64_t)1 << (s - 1);
    product = (uint64_t)((int64_t)sum * (int64_t)((m & 0x7fffffu) | 0x800000u)) + ((uint64_t)1 << 62) + half;
    rest = product & (2 * half - 1);
    if (rest <= half >> 12 || rest >= 2 * half - (half >> 12))
        return whole(multiply(of_integer(sum), m), low, high);
    v = (int64_t)(product >> s) - ((int64_t)1 << (62 - s));
    return v < low ? low : v > high ? high : (int32_t)v;
}

static int32_t product8(int k, const int8_t w[k], const int16_t x[k]) {
    int32_t sum = 0;
    int j;
    for (j = 0; j < k; j++)
        sum += (int32_t)w[j] * x[j];
    return sum;
}

/* Column j is the low half of byte j, column j + (k + 1) / 2 the high one, each 8 above its weight. */
static int32_t product4(int k, const uint8_t w[(k + 1) / 2], const int16_t x[k]) {
    int32_t sum = 0;
    int j, half = (k + 1) / 2, rest = k - half;
    for (j = 0; j < half; j++)
        sum += (int32_t)((w[j] & 15) - 8) * x[j];
    for (j = 0; j < rest; j++)
        sum += (int32_t)((w[j] >> 4) - 8) * x[half + j];
    return sum;
}

/* No number is NaN or infinite. */
static int all_finite(int n, const real x[n]) {
    int i;
    for (i = 0; i < n; i++)
        if (((x[i] >> 23) & 255) == 255)
            return 0;
    return 1;
}

static void copy(int n, const real x[n], real y[n]) {
    int i;
    for (i = 0; i < n; i++)
        y[i] = x[i];
}

static void scale_each(int n, const real x[n], const real factor[n], real y[n]) {
    int i;
    for (i = 0; i < n; i++)
        y[i] = multiply(x[i], factor[i]);
}

static void normalize(int n, const real x[n], const real mean[n], const real rest[n], const real inverse[n], real low,
                      real high, real y[n]) {
    int i;
    for (i = 0; i < n; i++)
        y[i] = within(multiply(add(add(x[i], mean[i] ^ SIGN), rest[i] ^ SIGN), inverse[i]), low, high);
}

static void rectify(int n, const real x[n], real y[n]) {
    int i;
    for (i = 0; i < n; i++)
        y[i] = x[i] & SIGN ? 0 : x[i];
}

static void sum_each(int n, const real a[n], const real b[n], real y[n]) {
    int i;
    for (i = 0; i < n; i++)
        y[i] = add(a[i], b[i]);
}

static void quantize(int n, const real x[n], real step, int low, int high, int16_t y[n]) {
    int i;
    for (i = 0; i < n; i++)
        y[i] = (int16_t)whole(divide(x[i], step), low, high);
}

/* By the reciprocal of a step that is a power of two. */
static void quantize_shift(int n, const real x[n], real inverse, int low, int high, int16_t y[n]) {
    int i;
    for (i = 0; i < n; i++)
        y[i] = (int16_t)whole(multiply(x[i], inverse), low, high);
}

static void quantize_bytes(int n, const uint8_t x[n], const int8_t code[256], int zero, int16_t y[n]) {
    int i;
    for (i = 0; i < n; i++)
        y[i] = (int16_t)(code[x[i]] - zero);
}

static void dequantize(int n, const int16_t x[n], real step, real y[n]) {
    int i;
    for (i = 0; i < n; i++)
        y[i] = multiply(of_integer(x[i]), step);
}

/* Codes of w x + b, each `step` places after the one before. */
static void dense8(int n, int k, const int8_t w[n * k], const int32_t b[n], const real m[n], const int16_t x[k],
                   int low, int high, int step, int16_t y[(n - 1) * step + 1]) {
    int i;
    for (i = 0; i < n; i++)
        y[i * step] = (int16_t)requantized(b[i] + product8(k, w + i * k, x), m[i], low, high);
}

static void dense4(int n, int k, const uint8_t w[n * ((k + 1) / 2)], const int32_t b[n], const real m[n],
                   const int16_t x[k], int low, int high, int step, int16_t y[(n - 1) * step + 1]) {
    int i;
    for (i = 0; i < n; i++)
        y[i * step] = (int16_t)requantized(b[i] + product4(k, w + i * ((k + 1) / 2), x), m[i], low, high);
}

static void last8(int n, int k, const int8_t w[n * k], const real unit[n], const real b[n], const int16_t x[k],
                  real y[n]) {
    int i;
    for (i = 0; i < n; i++)
        y[i] = add(multiply(of_integer(product8(k, w + i * k, x)), unit[i]), b[i]);
}

static void last4(int n, int k, const uint8_t w[n * ((k + 1) / 2)], const real unit[n], const real b[n],
                  const int16_t x[k], real y[n]) {
    int i;
    for (i = 0; i < n; i++)
        y[i] = add(multiply(of_integer(product4(k, w + i * ((k + 1) / 2), x)), unit[i]), b[i]);
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

static void conv8(int n, int c, int h, int wide, int kh, int kw, int sh, int sw, int ph, int pw, int oh, int ow,
                  const int8_t w[n * c * kh * kw], const int32_t b[n], const real m[n], const int16_t x[c * h * wide],
                  int low, int high, int16_t row[c * kh * kw], int16_t y[n * oh * ow]) {
    int u, v;
    for (u = 0; u < oh; u++)
        for (v = 0; v < ow; v++) {
            window(c, h, wide, kh, kw, u * sh - ph, v * sw - pw, x, row);
            dense8(n, c * kh * kw, w, b, m, row, low, high, oh * ow, y + u * ow + v);
        }
}

static void conv4(int n, int c, int h, int wide, int kh, int kw, int sh, int sw, int ph, int pw, int oh, int ow,
                  const uint8_t w[n * ((c * kh * kw + 1) / 2)], const int32_t b[n], const real m[n],
                  const int16_t x[c * h * wide], int low, int high, int16_t row[c * kh * kw], int16_t y[n * oh * ow]) {
    int u, v;
    for (u = 0; u < oh; u++)
        for (v = 0; v < ow; v++) {
            window(c, h, wide, kh, kw, u * sh - ph, v * sw - pw, x, row);
            dense4(n, c * kh * kw, w, b, m, row, low, high, oh * ow, y + u * ow + v);
        }
}

static void look_up(int n, const int16_t x[n], int first, const int8_t code[256], int zero, int16_t y[n]) {
    int i;
    for (i = 0; i < n; i++)
        y[i] = (int16_t)(code[(x[i] - first) & 255] - zero);
}

/* Distances from the whole number next to the mean, so that all sums are of small integers. */
static void layer_norm(int n, const int16_t x[n], real share, real epsilon, const real gain[n], const real offset[n],
                       real y[n]) {
    int32_t sum = 0, rest = 0, centre;
    uint32_t squares = 0;
    real mean, variance, root, deviation;
    int i;
    for (i = 0; i < n; i++)
        sum += x[i];
    centre = whole(multiply(of_integer(sum), share), -32768, 32767);
    for (i = 0; i < n; i++) {
        int32_t d = x[i] - centre;
        rest += d;
        squares += (uint32_t)d * (uint32_t)d;
    }
    mean = multiply(of_integer(rest), share);
    variance = multiply(of_integer((int32_t)squares), share);
    variance = add(add(variance, multiply(mean, mean) ^ SIGN), epsilon);
    root = square_root(variance);
    deviation = multiply(add(root, divide(variance, root)), 0x3f000000u);
    for (i = 0; i < n; i++) {
        real near = add(of_integer(x[i] - centre), mean ^ SIGN);
        y[i] = add(multiply(divide(near, deviation), gain[i]), offset[i]);
    }
}

/* The number of the largest of n scores, which are counted from `start`. */
static void argmax(int n, const real x[n], int start, int32_t y[1]) {
    int i, best = 0;
    for (i = 1; i < n; i++)
        if (less(x[best], x[i]))
            best = i;
    y[0] = start + best;
}

static void positive(int n, const real x[n], int32_t y[n]) {
    int i;
    for (i = 0; i < n; i++)
        y[i] = less(0, x[i]);
}

static void clip(int n, const real x[n], const real low[n], const real high[n], real y[n]) {
    int i;
    for (i = 0; i < n; i++)
        y[i] = within(x[i], low[i], high[i]);
}

/* By exp(-2 |a|): as many halvings as log 2 fits into 2 |a|, and the series of exp for what is left. */
static real tanh_of(real a) {
    const uint64_t unit = (uint64_t)1 << 30, log2 = 744261118u;
    uint64_t rest = (uint64_t)whole(multiply(a & ~SIGN, 0x4d000000u), 0, INT32_MAX) * 16, power = unit;
    int k, halvings = (int)(rest / log2);
    rest %= log2;
    for (k = 10; k; k--)
        power = unit - ((rest * power) >> 30) / (uint64_t)k;
    power >>= halvings;
    return pack(a & SIGN, ((unit - power) << 30) / (unit + power), -30);
}

static void squash(int n, const real x[n], const real low[n], const real high[n], const real range[n], real y[n]) {
    int i;
    for (i = 0; i < n; i++) {
        real share = multiply(add(tanh_of(x[i]), 0x3f800000u), 0x3f000000u);
        y[i] = within(add(multiply(share, range[i]), low[i]), low[i], high[i]);
    }
}
