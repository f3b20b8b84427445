"""NumPy forms of functions that NumPy lacks (erf, gelu, sigmoid, ...), and exact references.

Eager forms work block by block, so that the many passes of a polynomial stay in the first-level cache. They take any
floating dtype; float16 is computed in float32. References compute float32 in float64 and round once.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any  # an ndarray or a NumPy scalar
FEW = 64
BLOCK = 8192  # elements: a few float32 blocks fit the first-level cache
# A mask that varies is written through by np.putmask, which has no branches: np.copyto(where=) takes 3.5 times as long.

_SQRT_HALF = math.sqrt(0.5)


def floating(x: Any) -> Any:
    """As an array of a floating dtype; integers become float64."""
    x = np.asarray(x)
    if x.dtype.kind == "f":
        return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))
    if x.dtype.kind not in "iub":
        raise TypeError(f"a real tensor is needed, not {x.dtype}")
    return x.astype(np.float64)


def blockwise(kernel: Callable[[Any, Any], None], scalar: Callable[[float], float] | None = None) -> Callable[..., Any]:
    """An elementwise function from a kernel(x, out) over contiguous 1-D blocks of float32 or float64. `scalar`: the function of one
    number, for so few float32 elements that the kernel's many passes cost more."""
    def run(x: Any) -> Any:
        x = floating(x)
        if scalar is not None and x.size <= FEW and x.dtype.itemsize == 4:
            return np.array([scalar(v) for v in x.ravel().tolist()], np.float32).reshape(x.shape)[()]
        if x.dtype.itemsize == 2:
            return run(x.astype(np.float32)).astype(x.dtype)[()]
        if x.size <= BLOCK and x.ndim and x.flags.c_contiguous:
            out = np.empty_like(x)
            with np.errstate(all="ignore"):
                kernel(x, out)
            return out
        flat = np.ascontiguousarray(x).reshape(-1)
        out = np.empty_like(flat)
        with np.errstate(all="ignore"):
            for i in range(0, flat.size, BLOCK):
                kernel(flat[i:i + BLOCK], out[i:i + BLOCK])
        return out.reshape(x.shape)[()]
    run.__name__ = kernel.__name__.strip("_")
    return run


def _horner(coefficients: tuple[float, ...], x: Any, out: Any) -> Any:
    """Polynomial, highest degree first, into out."""
    np.multiply(x, coefficients[0], out=out)
    for c in coefficients[1:-1]:
        out += c
        out *= x
    out += coefficients[-1]
    return out


# -- erf

_ERF_SMALL = (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
_ERF_LARGE = (-1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2, -1.06777877e-1, -6.34846687e-1, -1.28717512e-1)

# fdlibm's s_erf.c (Sun Microsystems), constant term first
_PP = (1.28379167095512558561e-01, -3.25042107247001499370e-01, -2.84817495755985104766e-02, -5.77027029648944159157e-03, -2.37630166566501626084e-05)
_QQ = (1.0, 3.97917223959155352819e-01, 6.50222499887672944485e-02, 5.08130628187576562776e-03, 1.32494738004321644526e-04, -3.96022827877536812320e-06)
_PA = (-2.36211856075265944077e-03, 4.14856118683748331666e-01, -3.72207876035701323847e-01, 3.18346619901161753674e-01,
       -1.10894694282396677476e-01, 3.54783043256182359371e-02, -2.16637559486879084300e-03)
_QA = (1.0, 1.06420880400844228286e-01, 5.40397917702171048937e-01, 7.18286544141962662868e-02, 1.26171219808761642112e-01,
       1.36370839120290507362e-02, 1.19844998467991074170e-02)
_RA = (-9.86494403484714822705e-03, -6.93858572707181764372e-01, -1.05586262253232909814e+01, -6.23753324503260060396e+01, -1.62396669462573470355e+02,
       -1.84605092906711035994e+02, -8.12874355063065934246e+01, -9.81432934416914548592e+00)
_SA = (1.0, 1.96512716674392571292e+01, 1.37657754143519042600e+02, 4.34565877475229228821e+02, 6.45387271733267880336e+02, 4.29008140027567833386e+02,
       1.08635005541779435134e+02, 6.57024977031928170135e+00, -6.04244152148580987438e-02)
_RB = (-9.86494292470009928597e-03, -7.99283237680523006574e-01, -1.77579549177547519889e+01, -1.60636384855821916062e+02, -6.37566443368389627722e+02,
       -1.02509513161107724954e+03, -4.83519191608651397019e+02)
_SB = (1.0, 3.03380607434824582924e+01, 3.25792512996573918826e+02, 1.53672958608443695994e+03, 3.19985821950859553908e+03, 2.55305040643316442583e+03,
       4.74528541206955367215e+02, -2.24409524465858183362e+01)
_ERX = 8.45062911510467529297e-01


def _ratio(p: tuple[float, ...], q: tuple[float, ...], x: Any) -> Any:
    return _horner(p[::-1], x, np.empty_like(x)) / _horner(q[::-1], x, np.empty_like(x))


def _erfc_tail(a: Any, square_high: Any, square_low: Any) -> Any:
    """erfc(a) for a >= 1.25, given a^2 as an unevaluated sum: no error of a is amplified."""
    t = 1.0 / (a * a)
    exponent = np.where(a < 1 / 0.35, _ratio(_RA, _SA, t), _ratio(_RB, _SB, t))
    return np.exp(-square_high - 0.5625) * np.exp(exponent - square_low) / a


def _split(x: Any) -> tuple[Any, Any]:
    """x as a sum of a part whose square is exact and a rest (float64)."""
    high = (np.ascontiguousarray(x).view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)
    return high, x - high


def _erf64(x: Any, out: Any) -> None:
    a = np.minimum(np.abs(x), 6.0)
    small = x + x * _ratio(_PP, _QQ, np.minimum(a, 1.0) ** 2)
    middle = _ERX + _ratio(_PA, _QA, np.minimum(a, 1.5) - 1.0)
    b = np.maximum(a, 1.25)
    high, low = _split(b)
    large = 1.0 - _erfc_tail(b, high * high, low * (b + high))
    result = np.copysign(np.where(a < 1.25, middle, large), x)
    np.copyto(out, np.where(a < 0.84375, small, result))


def _erf(x: Any, out: Any) -> None:
    if x.dtype == np.float64:
        return _erf64(x, out)
    a = np.abs(x)
    small = a <= 0.927734375
    t = np.minimum(a, 4.2)
    r = _horner(_ERF_LARGE, t, np.empty_like(t))
    r *= t
    r -= t
    np.exp(r, out=r)
    np.subtract(1, r, out=out)
    np.copysign(out, x, out=out)
    if small.any():
        np.minimum(a, 1.0, out=a)
        a *= a
        p = _horner(_ERF_SMALL, a, r)
        p *= x
        p += x
        np.putmask(out, small, p)


erf = blockwise(_erf, math.erf)

# -- gelu, the erf form: x * Phi(x), without cancellation for negative x

_ERFCX = (0.0008588077034801245, 0.006941675208508968, -0.015977708622813225, 0.03640361502766609, -0.06661607325077057, 0.09382903575897217,
          -0.10099167376756668, 0.06809256225824356, 0.015377343632280827, -0.1396210491657257, 1.2329951524734497)


def _gelu64(x: Any, out: Any) -> None:
    xm = np.clip(x, -39.0, 39.0)
    a = np.abs(xm) * _SQRT_HALF
    _erf64(a, out)
    near = 0.5 - 0.5 * out  # Phi(-|x|); exact enough while it is not small
    b = np.maximum(np.abs(xm), 1.25 / _SQRT_HALF)
    high, low = _split(b)
    far = 0.5 * _erfc_tail(b * _SQRT_HALF, 0.5 * high * high, 0.5 * low * (b + high))
    tail = np.where(a < 1.25, near, far)
    np.copysign(np.where(x < 0, xm * tail, x - xm * tail), x, out=out)


def _gelu(x: Any, out: Any) -> None:
    if x.dtype == np.float64:
        return _gelu64(x, out)
    xm = np.clip(x, np.float32(-14.7), np.float32(14.7))
    a = np.abs(xm)
    a *= np.float32(_SQRT_HALF)
    q = a + np.float32(4)
    np.divide(a - np.float32(4), q, out=q)
    g = _horner(_ERFCX, q, out)
    a += a
    a += np.float32(1)
    g /= a
    # exp(-x^2/2) without the rounding error of x^2: the high part has 12 bits, so that its square is exact
    high = (xm.view(np.uint32) & np.uint32(0xFFFFF000)).view(np.float32)
    np.subtract(xm, high, out=a)
    np.add(xm, high, out=q)
    a *= q
    a *= np.float32(-0.5)
    np.exp(a, out=a)
    np.multiply(high, high, out=q)
    q *= np.float32(-0.5)
    np.exp(q, out=q)
    q *= a
    q *= np.float32(0.5)
    g *= q  # Phi(-|x|)
    np.multiply(xm, g, out=q)
    np.subtract(x, q, out=g)  # xm here too: infinity * 0 would be NaN
    np.putmask(g, x < 0, q)
    np.copysign(g, x, out=g)


def _phi_times(x: float) -> float:
    """x * Phi(x) in float64, to be rounded to float32."""
    return x if x != x or x == math.inf else -0.0 if x < -40 else 0.5 * x * math.erfc(-x * _SQRT_HALF)


gelu = blockwise(_gelu, _phi_times)


def _sigmoid(x: Any, out: Any) -> None:
    """exp(min(x, 0)) / (1 + exp(-|x|)): neither overflows, and no mask is written through, whose branches mispredict."""
    np.abs(x, out=out)
    np.negative(out, out=out)
    np.exp(out, out=out)
    np.add(out, 1, out=out)
    z = np.minimum(x, 0)
    np.exp(z, out=z)
    np.divide(z, out, out=out)


sigmoid = blockwise(_sigmoid)


def _silu(x: Any, out: Any) -> None:
    _sigmoid(x, out)
    np.multiply(out, x, out=out)
    np.copyto(out, -0.0, where=np.isneginf(x))


silu = blockwise(_silu)


def _gelu_tanh(x: Any, out: Any) -> None:
    """x * sigmoid(2 * sqrt(2/pi) * (x + 0.044715 x^3)): the tanh form without its cancellation."""
    u = x * x
    u *= 0.044715
    u += 1
    u *= x
    u *= 2 * math.sqrt(2 / math.pi)
    _sigmoid(u, out)
    out *= x
    np.copyto(out, -0.0, where=np.isneginf(x))


gelu_tanh = blockwise(_gelu_tanh)


def _softplus(x: Any, out: Any) -> None:
    z = np.abs(x)
    np.negative(z, out=z)
    np.exp(z, out=z)
    np.log1p(z, out=z)
    np.maximum(x, 0, out=out)
    out += z


softplus = blockwise(_softplus)

# -- exact references


def exactly(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A reference from a float64 function: float32 and float16 are computed in float64 and rounded once."""
    def reference(*arrays: Any, **attrs: Any) -> Any:
        arrays = tuple(map(floating, arrays))
        dtype = np.result_type(*arrays)
        with np.errstate(all="ignore"):
            return np.asarray(fn(*(a.astype(np.float64) for a in arrays), **attrs)).astype(dtype)[()]
    return reference


def _scalarwise(fn: Callable[[float], float]) -> Callable[[Any], Any]:
    vectorised = np.vectorize(fn, otypes=[np.float64])
    return lambda x: vectorised(x) if np.size(x) else np.zeros(np.shape(x))


def _phi_times_exact(x: float) -> float:
    """x * Phi(x) in float64; the rounding of x/sqrt(2) is put right to first order."""
    if math.isnan(x) or x == math.inf:
        return x
    if x < -40:
        return -0.0
    exact = -np.longdouble(x) / np.sqrt(np.longdouble(2))
    z = float(exact)
    value = math.erfc(z) - 2 / math.sqrt(math.pi) * math.exp(-z * z) * float(exact - z)
    return 0.5 * x * value


def _exact_sigmoid(x: Any) -> Any:
    z = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, z) / (1.0 + z) + 0 * np.where(np.isnan(x), x, 0)


erf_exact = exactly(_scalarwise(math.erf))
gelu_exact = exactly(_scalarwise(_phi_times_exact))
sigmoid_exact = exactly(_exact_sigmoid)
silu_exact = exactly(lambda x: np.where(np.isneginf(x), -0.0, x * _exact_sigmoid(x)))
gelu_tanh_exact = exactly(lambda x: np.where(np.isneginf(x), -0.0, x * _exact_sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))))
softplus_exact = exactly(lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))
