"""LAMB (You et al., arXiv 1904.00962, version 3; ALBERT paper, section 4.1).

In: gradients with their variables.  Out: the op that updates the variables, as from any
tf.train.Optimizer. The moments stand in the checkpoint as <variable>/lamb_m and <variable>/lamb_v.

  m = β₁ m + (1 - β₁) g             v = β₂ v + (1 - β₂) g²
  u = m / (√v + ε) + λ w            w = w - rate · ‖w‖ / ‖u‖ · u

The moments are not bias-corrected, as in the reference implementations: the trust ratio takes out
again what a correction would bring, but for the weight decay.
"""

import re

import tensorflow.compat.v1 as tf

NO_WEIGHT_DECAY = ("LayerNorm", "layer_norm", "bias")


class LAMBOptimizer(tf.train.Optimizer):
    """Adam's direction, decoupled weight decay, and a step as long as each variable's norm asks."""

    slot_prefix = "lamb"

    def __init__(self, learning_rate, weight_decay_rate=0.01, beta_1=0.9, beta_2=0.999,
                 epsilon=1e-6, exclude_from_weight_decay=NO_WEIGHT_DECAY,
                 exclude_from_trust_ratio=(), correction=1.0, rate_factors=(),
                 name="LAMBOptimizer"):
        """Keeps the settings.

        Args:
          learning_rate: float or scalar tensor.
          weight_decay_rate: λ above.
          exclude_from_weight_decay: regular expressions; a variable whose name one of them is
            found in is not decayed.
          exclude_from_trust_ratio: the same for variables whose ratio stays 1; google-research's
            ALBERT takes NO_WEIGHT_DECAY here, albert_zh takes none.
          correction: float or scalar tensor that m / (√v + ε) is multiplied by, for moments that
            are to be bias-corrected.
          rate_factors: pairs of a regular expression and a number: the rate of a variable whose
            name the expression is found in is that many times learning_rate.
        """
        super(LAMBOptimizer, self).__init__(use_locking=False, name=name)
        self.learning_rate = learning_rate
        self.weight_decay_rate = weight_decay_rate
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.exclude_from_weight_decay = tuple(exclude_from_weight_decay)
        self.exclude_from_trust_ratio = tuple(exclude_from_trust_ratio)
        self.correction = correction
        self.rate_factors = tuple(rate_factors)

    def trust_ratio(self, variable, update):
        """‖variable‖ / ‖update‖ as a scalar, 1 where one of the norms is 0."""
        if is_named(variable, self.exclude_from_trust_ratio):
            return tf.ones([])
        length, step = tf.norm(variable), tf.norm(update)
        usable = tf.logical_and(length > 0.0, step > 0.0)
        return tf.where(usable, length / tf.where(usable, step, tf.ones_like(step)),
                        tf.ones_like(step))

    def _create_slots(self, var_list):
        for variable in var_list:
            self._zeros_slot(variable, "m", self.slot_prefix + "_m")
            self._zeros_slot(variable, "v", self.slot_prefix + "_v")

    def create_moments(self, variables):
        """Makes the variables of m and v, outside of any device's or loop's context."""
        with tf.init_scope():
            self._create_slots(variables)

    def update(self, variable, gradient):
        """One step of one variable, whose moments are there: (op, trust ratio)."""
        m, v = self.get_slot(variable, "m"), self.get_slot(variable, "v")
        next_m = self.beta_1 * m + (1.0 - self.beta_1) * gradient
        next_v = self.beta_2 * v + (1.0 - self.beta_2) * tf.square(gradient)
        update = self.correction * next_m / (tf.sqrt(next_v) + self.epsilon)
        if not is_named(variable, self.exclude_from_weight_decay):
            update += self.weight_decay_rate * variable
        ratio = self.trust_ratio(variable, update)
        rate = self.learning_rate
        for pattern, factor in self.rate_factors:
            rate = rate * factor if is_named(variable, [pattern]) else rate
        return tf.group(variable.assign_sub(rate * ratio * update),
                        m.assign(next_m), v.assign(next_v)), ratio

    def _resource_apply_dense(self, grad, handle):
        return self.update(handle, grad)[0]

    def _resource_apply_sparse(self, grad, handle, indices):
        raise NotImplementedError("densify the gradient of {} first: its duplicate rows would give "
                                  "a wrong norm".format(handle.op.name))


def is_named(variable, patterns):
    """Whether one of the regular expressions is found in the variable's name.

    A mirrored copy's /replica_1 is no part of the name.
    """
    name = re.sub(r"/replica_\d+", "", variable.op.name)
    return any(re.search(pattern, name) for pattern in patterns)
