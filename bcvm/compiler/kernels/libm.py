"""Functions without a vector form: the lanes go through memory and libm's double function, reached through the Context."""
from __future__ import annotations

from bcvm.compiler import abi
from bcvm.compiler.kernels.vector import Value, Vector
from bcvm.errors import Unsupported


def known(name: str) -> bool:
    return abi.TYPE.get(name, "").startswith("double")


def _helper(e: Vector, name: str) -> str:
    """void @libm_f(ctx, x, n) or (ctx, x, y, n): x[i] = f(x[i] (, y[i]))."""
    binary = "," in abi.TYPE[name]
    load_y = "\n  %q = getelementptr double, ptr %y, i64 %i\n  %b = load double, ptr %q" if binary else ""
    return e.f.module.helper(f"libm_{name}", f"""define internal void @libm_{name}(ptr %ctx, ptr %x, {'ptr %y, ' if binary else ''}i64 %n) noinline {{
entry:
  %t = load ptr, ptr %ctx
  %s = getelementptr ptr, ptr %t, i64 {abi.INDEX[name]}
  %f = load ptr, ptr %s
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  %p = getelementptr double, ptr %x, i64 %i
  %a = load double, ptr %p{load_y}
  %r = call double %f(double %a{', double %b' if binary else ''})
  store double %r, ptr %p
  %j = add i64 %i, 1
  %c = icmp slt i64 %j, %n
  br i1 %c, label %loop, label %done
done:
  ret void
}}""")


def call(e: Vector, name: str, *values: Value) -> Value:
    """float32 or float64 lanes, each computed in double precision and rounded once."""
    if not known(name):
        raise Unsupported(f"no native form of the function {name}")
    dtype, t = values[0].dtype, e.ty("double")
    helper = _helper(e, name)
    slots = [e.f.slot(8 * e.lanes) for _ in values]
    for v, slot in zip(values, slots, strict=True):
        e.f.do(f"store {t} {e.cast(v, 'float64').ref}, ptr {slot}, align 64")
    e.f.do(f"call void @{helper}(ptr %ctx, {', '.join(f'ptr {s}' for s in slots)}, i64 {e.lanes})")
    return e.cast(Value("float64", e.f.op(f"load {t}, ptr {slots[0]}, align 64")), dtype)
