"""Words and phrases that the text rules look for; all of them are ours."""

from __future__ import annotations

import re

# In a text of its own, or as a part that says nothing of the picture.
BOILERPLATE = re.compile(
    r"\b(?:click (?:here|to|on|for|image)|tap to|image may contain|may be an image|no (?:photo|image|description)|"
    r"image (?:not )?(?:available|unavailable|result)|"
    r"stock (?:photo|image|vector|illustration|footage)s?|royalty[- ]free|"
    r"all rights reserved|terms of (?:use|service)|privacy policy|cookie|sign (?:in|up)|log ?in|subscribe|newsletter|"
    r"follow us|share (?:this|on)|read more|learn more|see more|view (?:all|more|larger)|load more|skip to|back to top|"
    r"add to (?:cart|basket|wishlist)|leave a (?:comment|reply)|related (?:posts|articles)|posted (?:by|on|in)|"
    r"last updated|featured image|default (?:image|alt)|lorem ipsum|your browser|javascript|404|page not found|"
    r"home page|main menu|download (?:now|free|here)|wallpapers?|screenshot|thumbnail|placeholder|untitled)\b",
    re.IGNORECASE,
)
SPAM = re.compile(
    r"\b(?:buy now|order now|shop now|for sale|on sale|best price|lowest price|cheap|discounts?|coupons?|promo codes?|"
    r"free shipping|limited (?:time )?offer|special offer|money back|act now|casino|poker|betting|jackpot|lottery|"
    r"viagra|cialis|payday|loans?|crypto|bitcoin|forex|weight loss|lose weight|earn money|make money|work from home|"
    r"click below|100% free|risk[- ]free|satisfaction guaranteed|replica watches|essay writing|seo services|"
    r"backlinks?|torrents?|keygen|serial key|full movie)\b|\d{1,2} ?% off\b",
    re.IGNORECASE,
)
ADULT = re.compile(
    r"\b(?:porn\w*|xxx|nsfw|nudes?|naked|sexy|sex|erotic\w*|hentai|milf|escorts?|camgirls?|onlyfans|blowjob|"
    r"boobs?|tits|pussy|cock|dick|cum|anal|fetish|bdsm|stripper|hookers?|horny|topless|lingerie)\b",
    re.IGNORECASE,
)
# Cut away before a text is judged: the rest may be a caption.
BAD_SPANS = re.compile(
    r"\s*[(\[](?:click|tap|photo|image|picture|credit|courtesy|source|via|file photo|getty|ap photo|"
    r"reuters)\b[^)\]]{0,120}[)\]]"
    r"|^\s*(?:image|photo|picture|pic|fig(?:ure)?\.?)\s*(?:\d+\s*)?[:\-\u2013]\s*(?=\w)"
    r"|\s*[|\u2022\u00b7\u2013-]?\s*(?:photo|image|picture|photograph)(?:\s+credit)?\s*"
    r"(?::|by|via|courtesy(?:\s+of)?)\s.{1,80}$"
    r"|\s*(?:\u00a9|\(c\)|copyright\b).{0,80}$",
    re.IGNORECASE,
)
