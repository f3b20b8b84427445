"""The way of a region kernel's calls that the kernel itself does not take: `by_rows` in the run-time support's table, one function for all kernels.

A spliced kernel takes contiguous rows and no more leading dims than one, an LLVM kernel without reductions takes contiguous rows; they hand over all else. An operand
whose row is not contiguous goes through a tile, piece by piece, or as a whole row where the kernel wants that.
A kernel may also have scratch rows, which come after its operands. What must be known of a kernel is in words: distance from here to its inner
code, or 0, when the kernel itself, whose address is in the Context (CTX_ROWS), is called for one row; rank, number of operands, whether it wants
whole rows, number of scratch rows, and per operand its element size | LANE | OUTPUT.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

from bcvm.compiler import abi
from bcvm.compiler.kernels.operands import stack_or_arena
from bcvm.compiler.kernels.text import KERNEL_PARAMETERS, Function, Module

LANE, OUTPUT = 256, 512
PACKED, SCRATCH = 1, 2  # what the inner code gets in place of lo: whether its rows are packed, whether scratch rows come with the operands
MAX_OPERANDS, MAX_RANK = 15, 8
TILE = 256  # elements of a row, or of a piece of it, that are on the stack
SHORT = 512  # elements of a scratch row that the inner code may have in its own frame
MOVE = 7     # words that say how an operand goes through its tile
HEADER = 5  # words before those of the operands
NAME = "by_rows"


def about(rank: int, kinds: Sequence[int], inner: int = 0, whole: bool = False, scratch: int = 0) -> tuple[int, ...]:
    """The words that say what must be known of a kernel. kinds: of its operands, then of its scratch rows."""
    return (inner, rank, len(kinds) - scratch, int(whole), scratch, *kinds)


def write(m: Module) -> None:
    """Add the function to a module."""
    f = Function(m, f"define i32 @{NAME}({KERNEL_PARAMETERS}, ptr %about) nounwind")
    block, rows, tiles, sizes = (f.slot(8 * n) for n in (MAX_OPERANDS * (1 + MAX_RANK), MAX_OPERANDS, TILE * MAX_OPERANDS, MAX_RANK))
    advance, incoming, outgoing = (f.slot(8 * n) for n in (MAX_OPERANDS, MAX_OPERANDS * MOVE, MAX_OPERANDS * MOVE))
    distance = f.word("%about", 0)
    itself = f.op(f"icmp eq i64 {distance}, 0")
    inner = f.op(f"select i1 {itself}, ptr {f.pointer('%ctx', abi.CTX_ROWS)}, ptr {f.at('%about', distance)}")
    flags = f.op(f"select i1 {itself}, i64 0, i64 {SCRATCH | PACKED}")
    rank, count, whole, scratch = (f.word("%about", i) for i in range(1, HEADER))
    width, leading = f.op(f"add i64 {rank}, 1"), f.op(f"sub i64 {rank}, 1")
    n = _at(f, "%sizes", leading)

    def word(k: str, offset: str) -> str:
        return f.op(f"add i64 {f.op(f'mul i64 {k}, {width}')}, {offset}")

    with f.loop("0", leading, "1", [("i64", "1")]) as dims:
        dims.next = [f.op(f"mul i64 {dims.carried[0]}, {_at(f, '%sizes', dims.index)}")]
    end = f.op(f"select i1 {f.op('icmp slt i64 %hi, 0')}, i64 {dims.results[0]}, i64 %hi")
    with f.loop("0", f.op(f"mul i64 {count}, {width}"), "1") as words:
        _put(f, block, words.index, _at(f, "%ops", words.index))
    with f.loop("0", count, "1", [("i1", "false")]) as each:
        lane, size, _ = _kind(f, each.index)
        other = f.op(f"icmp ne i64 {_at(f, '%ops', word(each.index, rank))}, {size}")
        each.next = [f.op(f"or i1 {each.carried[0]}, {f.op(f'and i1 {lane}, {other}')}")]
        _put(f, block, word(each.index, rank), size)
    long = f.op(f"icmp sgt i64 {n}, 1")
    packed = f.op(f"and i1 {each.results[0]}, {long}")
    room, tiles, owner = _room(f, n, packed, whole, scratch, f.op(f"add i64 {count}, {scratch}"), tiles)
    longest_piece = f.op(f"select i1 {f.op(f'icmp ne i64 {whole}, 0')}, i64 {n}, i64 {TILE}")
    with f.loop("0", scratch, "1") as each:
        k = f.op(f"add i64 {count}, {each.index}")
        with f.loop("0", width, "1") as words:
            _put(f, block, word(k, words.index), "0")
        _put(f, block, word(k, "0"), f.op(f"add i64 {f.op(f'ptrtoint ptr {tiles} to i64')}, {f.op(f'mul i64 {k}, {room}')}"))
    bytes_of_row = f.op(f"shl i64 {n}, 3")
    pitch = f.op(f"and i64 {f.op(f'add i64 {bytes_of_row}, 63')}, -64")  # bytes from one row of a tile to the next
    last = f.op(f"sub i64 {leading}, 1")
    has_rows = f.op(f"icmp sgt i64 {leading}, 0")
    filled, emptied = _moves(f, packed, count, word, rank, has_rows, block, advance, tiles, room, pitch, (incoming, outgoing))
    before, some, ready = f.block, f.fresh("some"), f.fresh("ready")
    f.branch(has_rows, some, ready)
    f.label(some)
    size_of_last = _at(f, "%sizes", last)
    f.jump(ready)
    f.label(ready)
    longest = f.op(f"phi i64 [ 1, %{before} ], [ {size_of_last}, %{some} ]")
    with f.loop("%lo", end, "0") as units:
        u = units.index
        with f.loop("0", count, "1") as each:
            _put(f, rows, each.index, _at(f, "%ops", word(each.index, "0")))
        with f.loop("0", leading, "1", [("i64", u)]) as dims:  # the last dim first
            d = f.op(f"sub i64 {last}, {dims.index}")
            extent = _at(f, "%sizes", d)
            rest = f.op(f"udiv i64 {dims.carried[0]}, {extent}")
            position = f.op(f"sub i64 {dims.carried[0]}, {f.op(f'mul i64 {rest}, {extent}')}")
            with f.loop("0", count, "1") as each:
                stride = _at(f, "%ops", word(each.index, f.op(f"add i64 {d}, 1")))
                _put(f, rows, each.index, f.op(f"add i64 {_at(f, rows, each.index)}, {f.op(f'mul i64 {position}, {stride}')}"))
            dims.next = [rest]
        column = f.op(f"urem i64 {u}, {longest}")
        left, ahead = f.op(f"sub i64 {longest}, {column}"), f.op(f"sub i64 {end}, {u}")
        run = f.op(f"select i1 {f.op(f'icmp slt i64 {left}, {ahead}')}, i64 {left}, i64 {ahead}")
        units.step = run
        straight, pieces, done = f.fresh("straight"), f.fresh("pieces"), f.fresh("done")
        f.branch(packed, pieces, straight)
        f.label(straight)
        with f.loop("0", count, "1") as each:
            _put(f, block, word(each.index, "0"), _at(f, rows, each.index))
        f.do(f"call i32 {inner}(ptr %ctx, ptr {block}, ptr %sizes, i64 {SCRATCH}, i64 {run}, i64 {n})")
        f.jump(done)
        f.label(pieces)
        fit = f.op(f"udiv i64 {8 * TILE}, {pitch}")
        together = f.op(f"icmp slt i64 {fit}, {run}")
        together = f.op(f"select i1 {together}, i64 {fit}, i64 {run}")
        together = f.op(f"select i1 {f.op(f'icmp slt i64 {together}, 1')}, i64 1, i64 {together}")
        together = f.op(f"select i1 {f.op(f'icmp ne i64 {whole}, 0')}, i64 1, i64 {together}")
        with f.loop("0", run, together) as group:
            left = f.op(f"sub i64 {run}, {group.index}")
            some_rows = f.op(f"select i1 {f.op(f'icmp slt i64 {left}, {together}')}, i64 {left}, i64 {together}")
            with f.when(has_rows):
                _put(f, sizes, last, some_rows)
            with f.loop("0", n, longest_piece) as piece:
                rest = f.op(f"sub i64 {n}, {piece.index}")
                m_ = f.op(f"select i1 {f.op(f'icmp slt i64 {rest}, {longest_piece}')}, i64 {rest}, i64 {longest_piece}")
                with f.loop("0", count, "1") as each:  # of those with a tile the move below says where they are
                    there = f.op(f"add i64 {_at(f, rows, each.index)}, {f.op(f'mul i64 {piece.index}, {_at(f, advance, each.index)}')}")
                    _put(f, block, word(each.index, "0"), there)
                with f.loop("0", emptied, "1") as each:
                    entry = f.at(outgoing, f.op(f"mul i64 {each.index}, {8 * MOVE}"))
                    place = f.at(block, f.op(f"shl i64 {word(f.word(entry, 0), '0')}, 3"))
                    _put(f, entry, "6", f.word(place, 0))
                    f.do(f"store i64 {f.word(entry, 3)}, ptr {place}")
                _move(f, incoming, filled, word, block, some_rows, pitch, m_, False)
                _put(f, sizes, leading, m_)
                f.do(f"call i32 {inner}(ptr %ctx, ptr {block}, ptr {sizes}, i64 {flags}, i64 {some_rows}, i64 {m_})")
                _move(f, outgoing, emptied, word, block, some_rows, pitch, m_, True)
            with f.loop("0", count, "1") as each:  # not reached without a leading dim more than once: what is read then is not used
                stride = f.op(f"mul i64 {_at(f, '%ops', word(each.index, leading))}, {some_rows}")
                _put(f, rows, each.index, f.op(f"add i64 {_at(f, rows, each.index)}, {stride}"))
        f.jump(done)
        f.label(done)
    with f.when(f.op(f"icmp ne i64 {owner}, 0")):
        f.do(f"call void {f.table('release')}(ptr %ctx, i64 {owner})")
    f.do("ret i32 0")
    m.add(f)


def _room(f: Function, n: str, packed: str, whole: str, scratch: str, count: str, stack: str) -> tuple[str, str, str]:
    """Bytes of a tile, where the tiles are, and what to release (0: they are on the stack)."""
    needed = f.op(f"or i1 {packed}, {f.op(f'icmp ne i64 {scratch}, 0')}")
    needed = f.op(f"and i1 {needed}, {f.op(f'icmp ne i64 {whole}, 0')}")
    needed = f.op(f"and i1 {needed}, {f.op(f'icmp sgt i64 {n}, {TILE}')}")
    padded = f.op(f"add i64 {n}, 127")
    long = f.op(f"shl i64 {f.op(f'and i64 {padded}, -64')}, 3")
    at, owner = stack_or_arena(f, needed, f.op(f"mul i64 {long}, {count}"), stack)
    return f.op(f"select i1 {needed}, i64 {long}, i64 {8 * TILE}"), at, owner


def _at(f: Function, base: str, index: str) -> str:
    return f.op(f"load i64, ptr {f.at(base, index, 'i64')}")


def _put(f: Function, base: str, index: str, value: str) -> None:
    f.do(f"store i64 {value}, ptr {f.at(base, index, 'i64')}")


def _kind(f: Function, k: str) -> tuple[str, str, str]:
    """Of an operand: whether it moves along the row, the size of its elements, whether it is written."""
    word = _at(f, "%about", f.op(f"add i64 {k}, {HEADER}"))
    lane, written = (f.op(f"icmp ne i64 {f.op(f'and i64 {word}, {bit}')}, 0") for bit in (LANE, OUTPUT))
    return lane, f.op(f"and i64 {word}, 255"), written


def _moves(f: Function, packed: str, count: str, word: Callable[[str, str], str], rank: str, has_rows: str, block: str, advance: str, tiles: str, room: str, pitch: str,
           lists: tuple[str, str]) -> tuple[str, str]:
    """Bytes that each operand advances along the row, and the lists of what goes through tiles, into them and out of them: MOVE words each. How long these are."""
    f.module.declare("i64", "llvm.cttz.i64", "i64, i1")
    with f.loop("0", count, "1", [("i64", "0"), ("i64", "0")]) as each:
        lane, size, written = _kind(f, each.index)
        stride = _at(f, "%ops", word(each.index, rank))
        tiled = f.op(f"and i1 {lane}, {f.op(f'icmp ne i64 {stride}, {size}')}")
        tiled = f.op(f"and i1 {tiled}, {packed}")
        _put(f, advance, each.index, f.op(f"select i1 {lane}, i64 {stride}, i64 0"))
        tile = f.op(f"ptrtoint ptr {f.at(tiles, f.op(f'mul i64 {each.index}, {room}'))} to i64")
        table = f.pointer("%ctx", abi.CTX_TABLE)
        which = f.op(f"add i64 {f.op(f'call i64 @llvm.cttz.i64(i64 {size}, i1 true)')}, {abi.INDEX['move1']}")
        before = word(each.index, f.op(f"sub i64 {rank}, 1"))  # the stride from row to row, where there are rows
        jump = f.op(f"mul i64 {f.op(f'zext i1 {has_rows} to i64')}, {_at(f, '%ops', before)}")
        with f.when(f.op(f"and i1 {tiled}, {has_rows}")):
            _put(f, block, before, pitch)
        position = f.op(f"select i1 {written}, i64 {each.carried[1]}, i64 {each.carried[0]}")
        entry = f.at(f.op(f"select i1 {written}, ptr {lists[1]}, ptr {lists[0]}"), f.op(f"mul i64 {position}, {8 * MOVE}"))
        for i, value in enumerate((each.index, size, _at(f, table, which), tile, stride, jump)):
            _put(f, entry, str(i), value)
        is_in = f.op(f"and i1 {tiled}, {f.op(f'xor i1 {written}, true')}")
        is_out = f.op(f"and i1 {tiled}, {written}")
        each.next = [f.op(f"add i64 {old}, {f.op(f'zext i1 {more} to i64')}") for old, more in zip(each.carried, (is_in, is_out), strict=True)]
    return each.results[0], each.results[1]


def _move(f: Function, moves: str, count: str, word: Callable[[str, str], str], block: str, rows: str, pitch: str, m: str, output: bool) -> None:
    """Before the inner code runs: into the tiles of inputs. After it: from those of outputs, whose places lie behind their tiles' in the list."""
    with f.loop("0", count, "1") as each:
        entry = f.at(moves, f.op(f"mul i64 {each.index}, {8 * MOVE}"))
        k, size, function, tile, stride, jump = (f.word(entry, i) for i in range(6))
        place = f.at(block, f.op(f"shl i64 {word(k, '0')}, 3"))
        there = f.word(entry, 6) if output else f.word(place, 0)
        if not output:
            f.do(f"store i64 {tile}, ptr {place}")
        function = f.op(f"inttoptr i64 {function} to ptr")
        with f.loop("0", rows, "1", [("i64", tile), ("i64", there)]) as each_row:
            sides = [(f.op(f"inttoptr i64 {at} to ptr"), step) for at, step in zip(each_row.carried, (size, stride), strict=True)]
            (to, to_stride), (source, source_stride) = reversed(sides) if output else sides
            f.do(f"call void {function}(ptr {to}, i64 {to_stride}, ptr {source}, i64 {source_stride}, i64 {m}, i1 false)")
            each_row.next = [f.op(f"add i64 {each_row.carried[0]}, {pitch}"), f.op(f"add i64 {each_row.carried[1]}, {jump}")]
