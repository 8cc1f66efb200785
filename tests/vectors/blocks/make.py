#!/usr/bin/env python3
"""Makes the vectors of blocks and bans beside it: random histories with what a model that keeps everything answers.

    python3 tests/vectors/blocks/make.py

A file with `bans` is for a limiter, whose checks enforce blocks under a policy with a ban; all others are for a store.
"""

import json
import random
from pathlib import Path

START = 1_700_000_000_000
FOR_EVER = 2**48 - 1
FOLDER = Path(__file__).parent


class Rule:
    def __init__(self, kind, limit, window, precision):
        self.kind, self.limit, self.window, self.precision = kind, limit, window, precision
        self.hold = 0 if kind == "fixed" else window

    def end(self, now):
        return now - now % self.precision + self.precision

    def text(self):
        return {"kind": self.kind, "limit": self.limit, "window_ms": self.window, "precision_ms": self.precision}

    def strikes(self):
        return f"{self.limit}/{self.window}ms@{self.precision}ms"


class Model:
    """Every charge as (time of release, units), under (policy, key, window); every block as (until, by)."""

    def __init__(self, policies):
        self.policies, self.charges, self.blocks = policies, {}, {}

    def counting(self, now, policy, key, rule):
        all = self.charges.get((policy, key, rule.window, rule.precision), [])
        return sorted(it for it in all if it[0] > now)

    def used(self, now, policy, key, rule):
        return sum(units for _, units in self.counting(now, policy, key, rule))

    def charge(self, now, policy, key, rule, cost):
        if cost:
            release = rule.end(now) + rule.hold
            self.charges.setdefault((policy, key, rule.window, rule.precision), []).append((release, cost))

    def wait(self, now, policy, key, rule, cost):
        """Until the cost fits: 0 for now, None for never."""
        excess = self.used(now, policy, key, rule) + cost - rule.limit
        if excess <= 0:
            return 0
        if cost > rule.limit:
            return None
        for release, units in self.counting(now, policy, key, rule):
            excess -= units
            if excess <= 0:
                return release - now

    def usage(self, now, charges):
        def left(policy, key, rule):
            counting = self.counting(now, policy, key, rule)
            return {
                "remaining": max(0, rule.limit - sum(units for _, units in counting)),
                "reset_after_ms": max((release - now for release, _ in counting), default=0),
            }

        return [
            {"policy": policy, "key": key, "rules": [left(policy, key, rule) for rule in self.policies[policy]]}
            for policy, key, _ in charges
        ]

    def exceeded(self, now, charges):
        """(policy, key, place of the rule, wait) of each rule that denies."""
        return [
            (policy, key, place, wait)
            for policy, key, cost in charges
            for place, rule in enumerate(self.policies[policy])
            if (wait := self.wait(now, policy, key, rule, cost)) != 0
        ]

    def decide(self, now, charges, shadows=()):
        charges, shadows = added_up(charges), added_up(shadows)
        denying = self.exceeded(now, charges)
        if denying:
            longest = max(denying, key=lambda it: float("inf") if it[3] is None else it[3])
            expect = {"allowed": False, "usage": self.usage(now, charges)}
            expect["refused_by"] = dict(zip(("policy", "key", "rule"), longest))
            if longest[3] is not None:
                expect["retry_after_ms"] = longest[3]
            return expect
        for policy, key, cost in charges:
            for rule in self.policies[policy]:
                self.charge(now, policy, key, rule, cost)
        expect = {"allowed": True, "usage": self.usage(now, charges)}
        if shadows:
            expect["shadow"] = self.decide(now, shadows)
        return expect

    def blocked(self, now, charges):
        """The latest block of the charged keys; of equal ones, the first."""
        keys = [key for _, key, _ in charges if self.blocks.get(key, (0,))[0] > now]
        if not keys:
            return None
        key = max(keys, key=lambda it: self.blocks[it][0])
        until, by = self.blocks[key]
        return {"key": key, "until_ms": None if until == FOR_EVER else until, "by": by}

    def check(self, now, charges, shadows=(), enforces=True):
        blocked = enforces and self.blocked(now, charges)
        return {"allowed": False, "blocked": blocked} if blocked else self.decide(now, charges, shadows)

    def block(self, now, key, until, by):
        held = self.blocks.get(key, (0,))[0]
        if until > now and not (held > now and held >= until):
            self.blocks[key] = (until, by)


def added_up(charges):
    sums = {}
    for policy, key, cost in charges:
        sums[policy, key] = sums.get((policy, key), 0) + cost
    return [(policy, key, cost) for (policy, key), cost in sums.items()]


def texts(charges):
    return [dict(zip(("policy", "key", "cost"), it)) for it in charges]


def some_rules(random, limits=(1, 2, 3, 5, 20)):
    rules = {}
    for _ in range(random.randint(1, 3)):
        window = random.choice([50, 1_000, 10_000, 60_000])
        kind = random.choice(["sliding", "sliding", "sliding", "fixed"])
        precision = window if kind == "fixed" else random.choice([1, window, max(1, window // 10)])
        rules[window] = Rule(kind, random.choice(limits), window, precision)
    return list(rules.values())


def some_charges(random, policies, keys, most):
    costs = [0, 1, 1, 1, 1, 2, 3]
    return [
        (random.choice(policies), random.choice(keys), random.choice(costs))
        for _ in range(random.randint(1, most))
    ]


def gap(random):
    return random.choice([0, 0, 1, 1, random.randint(2, 60), random.randint(60, 900), random.randint(900, 20_000)])


def blocks(seed):
    rng = random.Random(seed)
    policies = {name: some_rules(rng) for name in ("ip", "user", "trial")}
    keys, model, now, steps = ["a", "b", "c", "d"], Model(policies), START + rng.randint(0, 10**6), []
    for _ in range(300):
        now += gap(rng)
        # A millisecond before a block ends, and the one at which it does.
        ends = [until for until, _ in model.blocks.values() if now < until < FOR_EVER]
        if ends and rng.random() < 0.3:
            now = max(now, min(ends) - rng.choice([0, 1]))
        kind = rng.choices(["check", "fill", "for", "until", "ever", "unblock"], [60, 12, 14, 8, 2, 4])[0]
        step = {"at_ms": now}
        if kind in ("check", "fill"):
            charges = some_charges(rng, ["ip", "user"], keys, 3)
            shadows = some_charges(rng, ["trial"], keys, 1) if kind == "check" and rng.random() < 0.3 else []
            enforces = rng.random() < 0.8
            step |= {"charges": texts(charges), "enforces_blocks": enforces}
            if kind == "check":
                if shadows:
                    step["shadows"] = texts(shadows)
                step["expect"] = model.check(now, charges, shadows, enforces)
            else:
                step["fill"] = rng.randint(0, 6)
                step["expect"] = {"decisions": [model.check(now, charges, (), enforces) for _ in range(step["fill"])]}
        elif kind == "unblock":
            step["unblock"] = rng.choice(keys)
            model.blocks.pop(step["unblock"], None)
        else:
            key, by = rng.choice(keys), rng.choice(["operator", "operator", "ban"])
            step |= {"block": key, "by": by}
            if kind == "for":
                step["for_ms"] = rng.choice([0, 1, 2, rng.randint(3, 1_000), rng.randint(1_000, 30_000)])
                until = now + step["for_ms"]
            else:
                until = FOR_EVER if kind == "ever" else now + rng.randint(-500, 20_000)
                step["until_ms"] = None if kind == "ever" else until
            model.block(now, key, until, by)
            until, by = model.blocks.get(key, (0, by))
            if until > now:
                step["holds"] = {"key": key, "until_ms": None if until == FOR_EVER else until, "by": by}
        steps.append(step)
    texts_by_name = {name: [it.text() for it in rules] for name, rules in policies.items()}
    return {"seed": seed, "policies": texts_by_name, "steps": steps}


def bans(seed):
    rng = random.Random(seed)
    policies = {name: some_rules(rng, (0, 1, 2, 3)) for name in ("login", "api", "free")}
    windows = [10_000, 60_000]
    bans = {}
    window, precision = rng.choice(windows), rng.choice([1, 20, 10_000])
    for name in ("login", "api"):
        # In every other file, their strikes are counted together.
        if seed % 2:
            window, precision = rng.choice(windows), rng.choice([1, 20, 10_000])
        strikes = Rule("sliding", rng.randint(1, 4), window, window // precision)
        bans[name] = (strikes, rng.choice([500, 5_000, 20_000]))
    keys, model, now, steps = ["a", "b", "c"], Model(policies), START + rng.randint(0, 10**6), []
    for _ in range(400):
        now += gap(rng) // 4
        ends = [until for until, _ in model.blocks.values() if now < until < FOR_EVER]
        if ends and rng.random() < 0.5:
            now = max(now, min(ends) - rng.choice([0, 1]))
        kind = rng.choices(["check", "block", "unblock"], [90, 3, 4])[0]
        step = {"at_ms": now}
        if kind == "unblock":
            key = step["unblock"] = rng.choice(keys)
            model.blocks.pop(key, None)
            forget_strikes(model, key)
        elif kind == "block":
            step |= {"block": rng.choice(keys), "by": "operator", "for_ms": rng.randint(1, 4_000)}
            model.block(now, step["block"], now + step["for_ms"], "operator")
        else:
            charges = some_charges(rng, list(policies), keys, 3)
            enforces = any(policy in bans for policy, _, _ in charges)
            step |= {"charges": texts(charges)}
            denying = model.exceeded(now, added_up(charges))
            step["expect"] = model.check(now, charges, (), enforces)
            if "refused_by" in step["expect"]:
                strike(model, now, bans, denying)
        steps.append(step)
    return {
        "seed": seed,
        "policies": {name: [it.text() for it in rules] for name, rules in policies.items()},
        "bans": {name: f"{strikes.strikes()}={time}ms" for name, (strikes, time) in bans.items()},
        "steps": steps,
    }


def strike(model, now, bans, denying):
    """One strike of each identity in each window; under the ban of least strikes, and of those the longest."""
    struck = {}
    for policy, key, _, _ in denying:
        if policy in bans:
            strikes, time = bans[policy]
            place = (key, strikes.window, strikes.precision)
            known = struck.get(place)
            if not known or (strikes.limit, -time) < (known[0].limit, -known[1]):
                struck[place] = (strikes, time)
    banned = []
    for (key, _, _), (strikes, time) in struck.items():
        if model.used(now, "!strikes", key, strikes) < strikes.limit:
            model.charge(now, "!strikes", key, strikes, 1)
        if model.used(now, "!strikes", key, strikes) >= strikes.limit:
            banned.append((key, now + time))
    for key, until in banned:
        model.block(now, key, until, "ban")
        forget_strikes(model, key)


def forget_strikes(model, key):
    for place in [it for it in model.charges if it[:2] == ("!strikes", key)]:
        del model.charges[place]


for seed in range(1, 5):
    for name, made in (("blocks", blocks(30_000 + seed)), ("bans", bans(40_000 + seed))):
        text = json.dumps(made, separators=(",", ":"))
        (FOLDER / f"{name}-{made['seed']}.json").write_text(text + "\n")
