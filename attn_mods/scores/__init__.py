"""The scores of the catalogue, one file each."""

from attn_mods.scores.alibi import Alibi
from attn_mods.scores.forgetting import Forgetting
from attn_mods.scores.head_bias import HeadBias
from attn_mods.scores.kerple import Kerple
from attn_mods.scores.log_n_scale import LogNScale
from attn_mods.scores.pair_bias import PairBias
from attn_mods.scores.relative_bias_table import RelativeBiasTable
from attn_mods.scores.sandwich import Sandwich
from attn_mods.scores.softcap import Softcap
from attn_mods.scores.t5_bucket import T5Bucket

ALL = (
    Softcap,
    Alibi,
    RelativeBiasTable,
    T5Bucket,
    HeadBias,
    PairBias,
    LogNScale,
    Sandwich,
    Kerple,
    Forgetting,
)

__all__ = [
    "ALL",
    "Alibi",
    "Forgetting",
    "HeadBias",
    "Kerple",
    "LogNScale",
    "PairBias",
    "RelativeBiasTable",
    "Sandwich",
    "Softcap",
    "T5Bucket",
]
