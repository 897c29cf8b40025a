"""The games of the Arcade Learning Environment: known without the package, so that an id is understood before it is
imported."""

from __future__ import annotations

LEGACY = (
    *("adventure", "air_raid", "alien", "amidar", "assault", "asterix", "asteroids", "atlantis", "bank_heist"),
    *("battle_zone", "beam_rider", "berzerk", "bowling", "boxing", "breakout", "carnival", "centipede"),
    *("chopper_command", "crazy_climber", "defender", "demon_attack", "double_dunk", "elevator_action", "enduro"),
    *("fishing_derby", "freeway", "frostbite", "gopher", "gravitar", "hero", "ice_hockey", "jamesbond"),
    *("journey_escape", "kangaroo", "krull", "kung_fu_master", "montezuma_revenge", "ms_pacman", "name_this_game"),
    *("phoenix", "pitfall", "pong", "pooyan", "private_eye", "qbert", "riverraid", "road_runner", "robotank"),
    *("seaquest", "skiing", "solaris", "space_invaders", "star_gunner", "tennis", "time_pilot", "tutankham"),
    *("up_n_down", "venture", "video_pinball", "wizard_of_wor", "yars_revenge", "zaxxon"),
)
"""Games that have ids of every family, as ale-py 0.12 names their files."""
LATER = (
    *("atlantis2", "backgammon", "basic_math", "blackjack", "casino", "crossbow", "darkchambers", "donkey_kong"),
    *("earthworld", "entombed", "et", "flag_capture", "frogger", "galaxian", "hangman", "haunted_house"),
    *("human_cannonball", "kaboom", "keystone_kapers", "king_kong", "klax", "koolaid", "laser_gates"),
    *("lost_luggage", "mario_bros", "miniature_golf", "mr_do", "othello", "pacman", "pitfall2", "sir_lancelot"),
    *("space_war", "superman", "surround", "tetris", "tic_tac_toe_3d", "trondead", "turmoil", "video_checkers"),
    *("video_chess", "video_cube", "word_zapper"),
)
"""Games that have an ALE/X-v5 alone."""
FAMILIES = ("{}NoFrameskip-v0", "{}NoFrameskip-v4", "{}-v0", "{}-v4")
"""Ids of the older families. v0 repeats the action before with probability 0.25, v4 never does; those without
NoFrameskip skip two to four frames by chance."""


def ids() -> tuple[str, ...]:
    """Every id: PongNoFrameskip-v4 and its older sisters, and ALE/Pong-v5, which skips 4 frames and repeats actions."""
    older = (family.format(_pascal(game)) for game in LEGACY for family in FAMILIES)
    return (*older, *(f"ALE/{_pascal(game)}-v5" for game in (*LEGACY, *LATER)))


def _pascal(game: str) -> str:
    """tic_tac_toe_3d is TicTacToe3D."""
    return game.title().replace("_", "")
