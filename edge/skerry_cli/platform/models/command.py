"""The arguments of `skerry models`."""

from __future__ import annotations

from skerry_cli.arguments import Commands, add_command
from skerry_cli.platform.models.fetching import pull_models, verify_models
from skerry_cli.platform.models.listing import list_models, show_model
from skerry_cli.platform.models.own import add_models, compress_model, remove_models
from skerry_cli.platform.models.shared import guarded


def register(commands: Commands) -> None:
    """Add the actions of `skerry models`."""
    parser = commands.add_parser(
        "models", help="list, show, pull, check, add, compress and remove models"
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = add_command(
        actions,
        "list",
        guarded(list_models),
        help="list the catalog",
        description="List the models of the catalog, and which are installed.",
        example="skerry models list --json",
    )
    listing.add_argument(
        "--all", action="store_true", help="also models that can be pulled from a hub"
    )
    show = add_command(
        actions,
        "show",
        guarded(show_model),
        help="everything about one model",
        description="Show what the catalog says about a model, and where its files are.",
        example="skerry models show @cf/huggingfacetb/smollm2-135m-instruct",
    )
    show.add_argument("model", help="id or alias")
    show.add_argument(
        "--tokenizer-dir",
        action="store_true",
        help="print only the folder that transformers' AutoTokenizer.from_pretrained reads",
    )
    pull = add_command(
        actions,
        "pull",
        guarded(pull_models),
        help="fetch models",
        description=(
            "Fetch and check models; what is installed and whole is left as it is. What the\n"
            "catalog lacks is looked up on a hub (HF_ENDPOINT, HF_TOKEN), pinned and added to it."
        ),
        example=(
            "skerry models pull @cf/meta/llama-3.2-1b-instruct\n"
            "  skerry models pull @cf/meta/llama-3.2-1b-instruct:q8_0\n"
            "  skerry models pull hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF --as @cf/me/qwen"
        ),
    )
    pull.add_argument(
        "model",
        nargs="+",
        help="id or alias, also with :QUANTISATION or :safetensors; "
        "or hf:OWNER/REPOSITORY[@REVISION][:FILE]",
    )
    pull.add_argument("--as", dest="name", metavar="ID", help="name to serve it under")
    verify = add_command(
        actions,
        "verify",
        guarded(verify_models),
        help="check installed files against their SHA-256",
        description=(
            "Read every file of installed models and compare its SHA-256, and what was packed of\n"
            "them. A start looks at size, time of change and inode alone."
        ),
        example="skerry models verify",
    )
    verify.add_argument("model", nargs="*", help="id or alias; everything installed if not given")
    add = add_command(
        actions,
        "add",
        guarded(add_models),
        help="serve a file of your own, or a model under another name",
        description=(
            "Add a GGUF file or a safetensors folder to the catalog; it is used where it lies.\n"
            "A file that no runner can open is refused. Given a model of the catalog, add another "
            "name for it."
        ),
        example=(
            "skerry models add ./my-model.gguf --as @cf/me/my-model\n"
            "  skerry models add @cf/me/my-model --as @cf/meta/llama-3.1-8b-instruct"
        ),
    )
    add.add_argument("source", help="a GGUF file, a safetensors folder, or a model's id")
    add.add_argument(
        "--as", dest="name", required=True, metavar="ID", help="name to serve it under"
    )
    add.add_argument(
        "--replace", action="store_true", help="also where the id is one that comes with Skerry"
    )
    remove = add_command(
        actions,
        "remove",
        guarded(remove_models),
        help="take models or other names out of the catalog, and delete what was downloaded",
        description=(
            "Take models of your own, or other names of models, out of the catalog. What was\n"
            "downloaded is deleted; files that were added where they lie stay there."
        ),
        example="skerry models remove @cf/me/my-model",
    )
    remove.add_argument("model", nargs="+", help="id, or another name that was added")
    smaller = add_command(
        actions,
        "compress",
        guarded(compress_model),
        help="copy a bf16 model into a quarter fewer bytes, without loss",
        description=(
            "Copy a safetensors folder, its bf16 matrices in 12 bits a weight (BF12): three\n"
            "quarters of the bytes to keep and to send. Every weight, and so every answer, is the\n"
            "same."
        ),
        example="skerry models compress ./my-model ./my-model-bf12",
    )
    smaller.add_argument("source", help="a folder of .safetensors files and their config.json")
    smaller.add_argument("target", help="the folder to write, which must not exist")
    for each in (listing, show, pull, verify, add, smaller, remove):
        each.add_argument("--json", action="store_true", help="answer in JSON")
