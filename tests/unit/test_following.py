"""The lines of activations that followers go along."""

from router.following import FOLLOWED_S, Following
from sessions_actor.channel import Address


class Clock:
    """Seconds, as told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def at(epoch: int, name: str = "a") -> Address:
    return Address(name, epoch, f"actor-{epoch}")


def test_a_follower_goes_from_one_activation_to_the_next() -> None:
    following = Following(Clock())
    following.follow("a", at(3))
    assert following.successor("a", 3) is None
    following.activated(at(5))
    following.activated(at(6))
    assert following.successor("a", 3) == at(5)
    assert following.successor("a", 5) == at(6)
    assert following.successor("a", 6) is None
    assert following.successor("a", 4) is None
    assert following.successor("b", 3) is None


def test_what_nobody_follows_is_not_kept() -> None:
    following = Following(Clock())
    following.activated(at(5))
    assert not following.is_followed("a")
    following.follow("a", at(5))
    assert following.is_followed("a")
    assert following.successor("a", 5) is None


def test_following_ends_when_nobody_asks_any_more() -> None:
    clock = Clock()
    following = Following(clock)
    following.follow("a", at(1))
    following.activated(at(2))
    clock.now = FOLLOWED_S + 1
    assert not following.is_followed("a")
    following.follow("a", at(9))
    assert following.successor("a", 1) is None


def test_asking_again_with_an_older_epoch_keeps_the_line() -> None:
    following = Following(Clock())
    following.follow("a", at(1))
    following.activated(at(2))
    following.follow("a", at(1))
    assert following.successor("a", 1) == at(2)


def test_memory_is_bounded() -> None:
    clock = Clock()
    following = Following(clock)
    for i in range(5000):
        following.follow(f"c{i}", at(1, f"c{i}"))
    clock.now = FOLLOWED_S + 1
    following.follow("a", at(1))
    assert len(following._until) == len(following._lines) == 1
