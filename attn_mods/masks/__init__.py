"""The masks of the catalogue, one file each: classes, and functions for what is only a composition of others."""

from attn_mods.masks.anti_causal import AntiCausal
from attn_mods.masks.area import Area
from attn_mods.masks.asr_chunk import AsrChunk
from attn_mods.masks.block_causal import BlockCausal
from attn_mods.masks.block_diagonal import BlockDiagonal
from attn_mods.masks.block_diffusion import BlockDiffusion
from attn_mods.masks.causal import Causal
from attn_mods.masks.chunked_causal import ChunkedCausal
from attn_mods.masks.cumsum_ar import CumsumAr
from attn_mods.masks.dilated_window import DilatedWindow
from attn_mods.masks.document import Document
from attn_mods.masks.document_causal import DOCUMENT_CAUSAL, document_causal
from attn_mods.masks.full import Full
from attn_mods.masks.global_plus_window import GlobalPlusWindow
from attn_mods.masks.key_padding import KeyPadding
from attn_mods.masks.left_padding import LeftPadding
from attn_mods.masks.multimodal_spans import MultimodalSpans
from attn_mods.masks.neighborhood import Neighborhood
from attn_mods.masks.prefix_lm import PrefixLm
from attn_mods.masks.selected_blocks import SelectedBlocks
from attn_mods.masks.shared_prefix import SharedPrefix
from attn_mods.masks.sink_plus_window import SinkPlusWindow
from attn_mods.masks.sliding_tile import SlidingTile
from attn_mods.masks.sliding_window import SlidingWindow
from attn_mods.masks.tree_verification import TreeVerification
from attn_mods.masks.window_asymmetric import WindowAsymmetric
from attn_mods.masks.window_symmetric import WindowSymmetric

ALL = (
    Full,
    Causal,
    SlidingWindow,
    Document,
    DOCUMENT_CAUSAL,
    AntiCausal,
    WindowAsymmetric,
    WindowSymmetric,
    DilatedWindow,
    SinkPlusWindow,
    GlobalPlusWindow,
    PrefixLm,
    KeyPadding,
    LeftPadding,
    ChunkedCausal,
    BlockCausal,
    BlockDiagonal,
    AsrChunk,
    BlockDiffusion,
    SharedPrefix,
    MultimodalSpans,
    CumsumAr,
    Neighborhood,
    SlidingTile,
    TreeVerification,
    SelectedBlocks,
    Area,
)

__all__ = [
    "ALL",
    "AntiCausal",
    "Area",
    "AsrChunk",
    "BlockCausal",
    "BlockDiagonal",
    "BlockDiffusion",
    "Causal",
    "ChunkedCausal",
    "CumsumAr",
    "DilatedWindow",
    "Document",
    "Full",
    "GlobalPlusWindow",
    "KeyPadding",
    "LeftPadding",
    "MultimodalSpans",
    "Neighborhood",
    "PrefixLm",
    "SelectedBlocks",
    "SharedPrefix",
    "SinkPlusWindow",
    "SlidingTile",
    "SlidingWindow",
    "TreeVerification",
    "WindowAsymmetric",
    "WindowSymmetric",
    "document_causal",
]
