"""Sphinx configuration. Build: sphinx-build -W --keep-going -b html docs docs/_build/html (no network needed)."""

import logging
import os
import sys
import warnings
from pathlib import Path

os.environ.setdefault("MUJOCO_GL", "disable")
os.environ.setdefault("MPLBACKEND", "Agg")
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

import torch
from sphinx_gallery.sorting import FileNameSortKey

import eqr_torchrl

torch.set_num_threads(1)  # small tensors: more threads only add waiting
logging.getLogger("torchrl").setLevel(logging.WARNING)  # no notes on storages in the tutorials' output
warnings.filterwarnings("ignore", category=DeprecationWarning)  # of libraries; our own fail in the tests

project, author, copyright = "eqr_torchrl", "the eqr_torchrl authors", "the eqr_torchrl authors"
version = release = eqr_torchrl.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.doctest",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx-mathjax-offline",
    "sphinxcontrib.bibtex",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "myst_parser",
    "public_names",
    "algorithm_table",
    "two_houses",
]
if os.environ.get("DOCS_ONLINE"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
        "tensordict": ("https://docs.pytorch.org/tensordict/stable", None),
        "torchrl": ("https://docs.pytorch.org/rl/stable", None),
    }

autodoc_typehints = "description"
autodoc_type_aliases = {"ArrayLike": "ArrayLike"}  # one word, not four lines of union
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autosummary_generate = False
toc_object_entries_show_parents = "hide"  # compute_target(), not EpistemicQuantileLoss.compute_target()
napoleon_numpy_docstring = False
napoleon_use_rtype = False
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
bibtex_bibfiles = ["references.bib"]
bibtex_reference_style = "author_year"

doctest_global_setup = """
import torch
from tensordict import TensorDict
from torchrl.objectives import SoftUpdate
from eqr_torchrl.testing import toy_actor, toy_batch, toy_critic, toy_env
torch.manual_seed(0)
torch.set_num_threads(1)
"""
doctest_test_doctest_blocks = ""  # docstring examples run under pytest; here only the pages' own blocks

sphinx_gallery_conf = {
    "examples_dirs": "../tutorials",
    "gallery_dirs": "tutorials",
    "filename_pattern": r"/plot_",
    "within_subsection_order": FileNameSortKey,
    "doc_module": ("eqr_torchrl",),
    "reference_url": {"eqr_torchrl": None},
    "backreferences_dir": "gen_backreferences",
    "abort_on_example_error": True,
    "show_memory": False,
    "capture_repr": (),
    "download_all_examples": False,
    "remove_config_comments": True,
    "plot_gallery": "True",
}

nitpicky = True
# Types of other libraries have no target offline; names of ours must resolve.
nitpick_ignore_regex = [("py:.*", r"(?!eqr_torchrl).*")]

html_theme = "furo"
pygments_dark_style = "github-dark"  # furo's own underlines module names, as if they were links
html_title = "eqr_torchrl"
html_static_path = ["_static"]
html_css_files = ["eqr.css"]
html_js_files = ["phone.js"]
exclude_patterns = ["_build", "gen_backreferences", "_ext"]
suppress_warnings = ["config.cache"]
copybutton_exclude = ".linenos, .gp, .go"
