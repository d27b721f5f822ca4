"""Token ids of small vocabularies, as llama.cpp gives them.

GOLDEN holds what llama_tokenize of llama-cpp-python 0.3.36 makes of each text, without BOS, with
the vocabularies of tokenizer_vocabularies.py written to GGUF by gguf.GGUFWriter: one line a text,
tokens as their texts between blanks, ⏎ for a line end and ␣ for a blank inside a token. Where
control tokens in the text make a difference, the ids with parse_special follow behind ` => `.
test_llama_cpp_agrees does that again where llama.cpp is installed.
"""

from __future__ import annotations

import random
import string
from pathlib import Path

import pytest
from tokenizer_vocabularies import VOCABULARIES, texts_of, write_gguf

from rocmforge.text.tokenizer import Tokenizer

GOLDEN = {
    "llama-bpe": """\

Ġ
ĠĠ
ĠĠĠĠ
Ċ
ĊĊ Ċ
ĠĊ
Ċ Ġ
ĠĠ ĊĊ Ġ Ġ x
x ĠĠ Ġ y
x Ġĉ Ġ y
čĊ čĊ Ġ x
hello Ġhello
Ġ Ġhello
hello Ċ
hello !! ĊĊ
hello Ġ !! Ġh
! hello
! ĊĊ hello
1
123 4 5
a 123 4 Ġ 12
12 a
$ 123 4 .
Â ½ 12
a 's Ġhe 'S Ġ ' ll 's '
a Ġ ' s
se 's
Ã© Ġ cÃ© ĠÃ©
e Ìģ e
ä½ł ä½ł
a Âł Âł b
ÂŃ Ġ x
-- Ġ --
x .Ċ h .h
a Â ħ b
<| i m _ e n d |> e d <| i m _ e n d |> => <|im_end|>ed <|im_end|>
<b> <b>
h <b> Ġh
<| u n u se d |>
<| b o s |> Ġh => <|bos|> Ġh
he 12 Ġhe 12
ð Ł Ļ Ĥ â Ģ į Ā ï ¿ ½
""",
    "qwen2": """\

Ġ
ĠĠ
ĠĠĠĠ
Ċ
ĊĊ Ċ
ĠĊ
Ċ Ġ
ĠĠ ĊĊ Ġ Ġ x
x ĠĠ Ġ y
x Ġĉ Ġ y
čĊ čĊ Ġ x
hello Ġhello
Ġ Ġhello
hello Ċ
hello !! ĊĊ
hello Ġ !! Ġh
! hello
! ĊĊ hello
1
1 2 3 4 5
a 1 2 3 4 Ġ 1 2
1 2 a
$ 1 2 3 4 .
Â ½ 1 2
a 's Ġ he 'S Ġ ' ll 's '
a Ġ ' s
se 's
Ã© Ġ cÃ© ĠÃ©
e Ìģ e
ä½ł ä½ł
a Âł Âł b
ÂŃ Ġ x
-- Ġ --
x .Ċ h .h
a Â ħ b
<| i m _ e n d |> e d <| i m _ e n d |> => <|im_end|>ed <|im_end|>
<b> <b>
h <b> Ġh
<| u n u se d |>
<| b o s |> Ġh => <|bos|> Ġh
he 1 2 Ġ he 1 2
ð Ł Ļ Ĥ â Ģ į Ā ï ¿ ½
""",
    "gpt-2": """\

Ġ
ĠĠ
ĠĠĠĠ
Ċ
ĊĊ Ċ
ĠĊ
ĊĠ
ĠĠ ĊĊ Ġ Ġ x
x ĠĠ Ġ y
x Ġĉ Ġ y
čĊ čĊ Ġ x
hello Ġhello
Ġ Ġhello
hello Ċ
hello !! ĊĊ
hello Ġ !! Ġh
! hello
! Ċ Ċ hello
1
1234 5
a 1234 Ġ 12
12 a
$ 1234 .
Â ½ 12
a 's Ġ he ' S Ġ ' ll 's '
a Ġ ' s
se 's
Ã© Ġ cÃ© ĠÃ©
e Ìģ e
ä½ł ä½ł
a Âł Âł b
ÂŃ Ġ x
-- Ġ --
x . Ċ h . h
a Â ħ b
<| i m _ e n d |> e d <| i m _ e n d |> => <|im_end|>ed <|im_end|>
<b> <b>
h <b> Ġh
<| u n u se d |>
<| b o s |> Ġh => <|bos|> Ġh
he 12 Ġ he 12
ð Ł Ļ Ĥ â Ģ į Ā ï ¿ ½
""",
    "default": """\

Ġ
ĠĠ
ĠĠĠĠ
Ċ
ĊĊ Ċ
ĠĊ
ĊĠ
ĠĠ ĊĊ Ġ Ġ x
x ĠĠ Ġ y
x Ġĉ Ġ y
čĊ čĊ Ġ x
hello Ġhello
Ġ Ġhello
hello Ċ
hello !! ĊĊ
hello Ġ !! Ġh
! hello
! Ċ Ċ hello
1
123 4 5
a 123 4 Ġ 12
12 a
$ 123 4 .
Â ½ 12
a ' s Ġ he ' S Ġ ' ll ' s '
a Ġ ' s
se ' s
Ã© Ġ cÃ© ĠÃ©
e Ìģ e
ä½ł ä½ł
a Âł Âł b
ÂŃ Ġ x
-- Ġ --
x . Ċ h . h
a Â ħ b
<| i m _ e n d |> e d <| i m _ e n d |> => <|im_end|>ed <|im_end|>
<b> <b>
h <b> Ġh
<| u n u se d |>
<| b o s |> Ġh => <|bos|> Ġh
he 12 Ġ he 12
ð Ł Ļ Ĥ â Ģ į Ā ï ¿ ½
""",
    "spm": """\

▁▁
␣␣
␣␣ ▁▁
␣␣ ␣␣ ▁h
▁he ll o
▁ ▁he ll o
▁he ll o ▁he ll o
▁he ll o ␣␣ ▁he ll o
▁he ll ll o▁
▁ 123 ▁ 123
▁ ⏎⏎ <0x0A>
▁ 你 <0xE5> <0xA5> <0xBD>
▁ é ▁ e <0xCC> <0x81>
▁▁ a ▁▁
▁a <0x00> <0x09>
▁ <s> hell o </s> => <s> ▁he ll o </s>
▁ <s> ▁a => <s> ▁▁ a
▁ < <0x75> <0x6E> <0x6B> > => <unk>
▁ < <0x30> <0x78> <0x34> 1 >
▁ <0xF0> <0x9F> <0x99> <0x82>
▁a <b> ▁a
<b> <b> ▁▁ a
▁a < <0x7C> <0x69> <0x6D> <0x5F> e <0x6E> <0x64> <0x7C> > ▁a => ▁a <|im_end|> ▁▁ a
▁ < <0x7C> <0x69> <0x6D> <0x5F> e <0x6E> <0x64> <0x7C> > => <|im_end|>
▁ ! h ▁ !
""",
    "spm-no-prefix": """\

▁
␣␣
␣␣ ▁
␣␣ ␣␣ h
hell o
▁he ll o
hell o ▁he ll o
hell o ␣␣ hell o
hell ll o▁
123 ▁ 123
⏎⏎ <0x0A>
你 <0xE5> <0xA5> <0xBD>
é ▁ e <0xCC> <0x81>
▁a ▁▁
a <0x00> <0x09>
<s> hell o </s>
<s> ▁a
< <0x75> <0x6E> <0x6B> > => <unk>
< <0x30> <0x78> <0x34> 1 >
<0xF0> <0x9F> <0x99> <0x82>
a <b> a
<b> <b> ▁a
a < <0x7C> <0x69> <0x6D> <0x5F> e <0x6E> <0x64> <0x7C> > ▁a => a <|im_end|> ▁a
< <0x7C> <0x69> <0x6D> <0x5F> e <0x6E> <0x64> <0x7C> > => <|im_end|>
! h ▁ !
""",
}


@pytest.fixture(scope="session")
def vocabularies() -> dict[str, Tokenizer]:
    return {name: Tokenizer(metadata, name) for name, metadata in VOCABULARIES.items()}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_golden(name: str, vocabularies: dict[str, Tokenizer]) -> None:
    tokens = [
        t.replace(" ", "␣").replace("\n", "⏎") for t in VOCABULARIES[name]["tokenizer.ggml.tokens"]
    ]
    for text, line in zip(texts_of(name), GOLDEN[name].split("\n")[:-1], strict=True):
        plain, _, parsed = line.partition(" => ")
        for special, golden in ((False, plain), (True, parsed or plain)):
            ids = vocabularies[name].encode(text, add_bos=False, parse_special=special)
            assert " ".join(tokens[i] for i in ids) == golden, text


@pytest.mark.peer
@pytest.mark.parametrize("name", VOCABULARIES)
def test_llama_cpp_agrees(name: str, tmp_path: Path, vocabularies: dict[str, Tokenizer]) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama.cpp is not installed (extra `peer`)")
    path = write_gguf(tmp_path / "v.gguf", VOCABULARIES[name])
    peer = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    rng = random.Random(0)
    alphabet = [*texts_of(name), *string.printable, "é", "\u0301", "\u00a0", "你", "▁", "🙂"]
    texts = texts_of(name) + ["".join(rng.choices(alphabet, k=12)) for _ in range(500)]
    for text in texts:
        for special in (False, True):
            ids = vocabularies[name].encode(text, add_bos=False, parse_special=special)
            assert ids == peer.tokenize(text.encode(), add_bos=False, special=special), text
