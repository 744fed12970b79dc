"""FedJAX's network for Shakespeare, from the parameters that all programs start from.

It differs by a hyperbolic tangent after each LSTM layer, and by four characters of its own: padding
(0), begin, end and unknown. The last three do not occur, so that their logits start low.
"""

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

jnp.NINF = -jnp.inf  # FedJAX 0.0.17 reads it; JAX 0.5.3 has it no more.

_SPECIAL = ((1, 3), (0, 0))
_NEVER = -20.0


def make(workload, arrays):
    """Parameters, gradient, tokens, labels, accuracy and loss."""
    recurrent = [name for name in sorted(arrays) if name.endswith("kernel")][1:]
    head, embedding = arrays["layer01.kernel"], arrays["layer00.embedding"]
    model = fedjax.models.shakespeare.create_lstm_model(
        len(embedding), embedding.shape[1], len(head), len(recurrent)
    )
    params = {
        "embed": {"embeddings": np.pad(embedding, _SPECIAL)},
        "linear": {
            "w": np.pad(head, _SPECIAL[::-1]),
            "b": np.pad(arrays["layer01.bias"], _SPECIAL[0], constant_values=_NEVER),
        },
    }
    for number, name in enumerate(recurrent):
        bias = arrays[name.replace("kernel", "bias")]
        module = f"lstm_{number}" if number else "lstm"
        params[f"{module}/linear"] = {"w": arrays[name], "b": bias}
    test = {"x": arrays["test_x"] + 1, "y": arrays["test_y"] + 1}

    @jax.jit
    def accuracy(params):
        return (model.apply_for_eval(params, test).argmax(-1) == test["y"]).mean()

    @jax.jit
    def loss(params):
        return model.train_loss(test, model.apply_for_eval(params, test)).mean()

    tokens, labels = arrays["train_x"] + 1, arrays["train_y"] + 1
    params = jax.tree.map(jnp.asarray, params)
    return params, fedjax.model_grad(model), tokens, labels, accuracy, loss
