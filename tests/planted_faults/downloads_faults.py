"""Faults of downloads, of captions and what they are joined to, of images that are held out, of archives."""

from __future__ import annotations

from fault import Fault


def _part(test: str) -> str:
    return f"tests/pipelines/test_download_parts.py::{test}"


def _download(test: str) -> str:
    return f"tests/pipelines/test_download.py::{test}"


def _test(name: str) -> str:
    return f"tests/pipelines/test_{name}"


FAULTS = (
    # What is done and what is not.
    Fault(
        "a line that was cut stays in the journal",
        "Journal._load",
        "                self._file.truncate(offset)\n                break",
        "                break",
        _part("test_a_journal_cut_at_any_byte_keeps_its_whole_lines"),
    ),
    Fault(
        "a row that was tried again counts twice",
        "Journal._load",
        "                    self.forget(row)\n",
        "                    self.outcome(row)\n",
        _part("test_a_journal_read_again_says_what_was_written"),
    ),
    Fault(
        "the journal of another list is gone on with",
        "Journal._is_damaged_header",
        "            if found == header:",
        "            if found.keys() == header.keys():",
        _part("test_a_journal_of_another_list_is_refused"),
    ),
    Fault(
        "the journal is not on the disk when it says so",
        "Journal.append",
        "os.fsync(self._file.fileno())",
        "self._file.tell()",
        _part("test_images_and_journal_are_on_the_disk_in_their_order"),
    ),
    Fault(
        "an image has its name before it is on the disk",
        "ImageFiles.keep",
        "os.fsync(file.fileno())",
        "file.tell()",
        _part("test_images_and_journal_are_on_the_disk_in_their_order"),
    ),
    Fault(
        "the journal names images before their names are on the disk",
        "_Run._flush",
        "            self._files.sync()\n            self._journal.append(outcomes)",
        "            self._journal.append(outcomes)\n            self._files.sync()",
        _download("test_an_image_is_on_the_disk_before_the_journal_says_so"),
    ),
    Fault(
        "an image that was cut or changed since is taken for whole",
        "_match",
        "if outcome == StoredImage(path, num_bytes, sha256):",
        "if isinstance(outcome, StoredImage) and (outcome.path, outcome.num_bytes) == (path, num_bytes):",
        _download("test_images_that_were_lost_cut_or_changed_since_are_fetched_again"),
    ),
    Fault(
        "a URL is asked for once for each row",
        "_Run._open_rows",
        "self._url_list.first_row(row) == row and ",
        "",
        _download("test_one_url_in_many_rows_is_asked_for_once"),
    ),
    # Servers, and who asks them.
    Fault(
        "a URL gets one attempt too many",
        "RowDownload.run",
        "attempt == self._limits.attempts",
        "attempt > self._limits.attempts",
        _download("test_dead_letters_are_tried_again_when_asked"),
    ),
    Fault(
        "a missing image is asked for again",
        "RowDownload.run",
        "if not error.may_pass or attempt",
        "if attempt",
        _download("test_one_url_in_many_rows_is_asked_for_once"),
    ),
    Fault(
        "a shorter pause ends a longer one",
        "HostGates.pause",
        "max(gate.closed_until, monotonic() + seconds)",
        "monotonic() + seconds",
        _part("test_a_shorter_pause_does_not_end_a_longer_one"),
    ),
    Fault(
        "a pause is forgotten when no request waits",
        "_Gate.is_needed",
        "return self.users > 0 or self.closed_until > monotonic() or",
        "return self.users > 0 or",
        _part("test_a_pause_holds_back_whoever_comes_to_that_host_only"),
    ),
    Fault(
        "a host gets one connection too many",
        "_Gate.__init__",
        "self.places = asyncio.Semaphore(places)",
        "self.places = asyncio.Semaphore(places + 1)",
        _part("test_turns_at_a_host_are_counted_and_forgotten"),
    ),
    Fault(
        "a host that asks for a day is asked again at once",
        "Fetcher._refused",
        'return DownloadError("fetch", reason, detail)',
        'return DownloadError("fetch", reason, detail, may_pass=True, wait_seconds=0.0)',
        _download("test_retry_after_is_waited_for_within_a_limit"),
    ),
    Fault(
        "who refuses all robots refuses us not",
        "refusal",
        'matching = {*names, "*", USAGE}',
        "matching = {*names, USAGE}",
        _part("test_opt_out_headers[values9-noai]"),
    ),
    Fault(
        "an address inside is reached through 6to4",
        "is_public",
        "inner = address.ipv4_mapped or address.sixtofour or",
        "inner = address.ipv4_mapped or",
        _part("test_addresses_that_are_not_public[2002:7f00:1::1]"),
    ),
    Fault(
        "who allows one network allows all",
        "AddressRule.allows",
        "any(parsed in network for network in self._allowed)",
        "bool(self._allowed)",
        _part("test_networks_that_the_user_allows_and_no_others"),
    ),
    Fault(
        "a dead network makes dead letters",
        "OutageWatch.note",
        "if len(self._hosts) >= _FEWEST_HOSTS:",
        "if len(self._hosts) > _FEWEST_HOSTS:",
        _part("test_a_dead_network_is_told_from_dead_links"),
    ),
    # Bodies.
    Fault(
        "a bomb is unpacked",
        "Body._write",
        "if self.num_bytes > self._max_bytes:",
        "if self._num_received > self._max_bytes:",
        _part("test_a_bomb_is_never_unpacked_beyond_the_limit"),
    ),
    Fault(
        "a compressed body may lack its end",
        "Unpacker.finish",
        "if self._inflate is not None and not self._inflate.eof:",
        "if self._inflate is not None and self._inflate.unconsumed_tail:",
        _part("test_a_compressed_body_without_its_end_is_cut_and_worth_another_try"),
    ),
    Fault(
        "what a file does not take at once is lost",
        "Body._write",
        "            while rest:\n",
        "            if rest:\n",
        _part("test_a_file_that_takes_little_at_once_gets_all"),
    ),
    # Captions, and images that are held out.
    Fault(
        "a join that found one image goes on",
        "check_match",
        "if report.found_images and report.found_share >= min_match:",
        "if report.found_images:",
        _test("captions.py::test_too_few_matches_stop_with_a_name_of_each_side"),
    ),
    Fault(
        "RefCOCO's validation images may be trained on",
        "_read_refer",
        'if split != "train":',
        'if split.startswith("test"):',
        _test("held_out_small.py::test_refcoco_holds_out_validation_and_tests"),
    ),
    Fault(
        "Visual Genome's images have one other name",
        "_read_visual_genome",
        'FLICKR: entry.get("flickr_id")',
        'FLICKR: entry.get("coco_id")',
        _test("held_out_small.py::test_visual_genomes_images_are_held_out_under_their_other_names"),
    ),
    Fault(
        "the first rule that holds an image out is the only one",
        "HeldOut.scan",
        "for rule, image in hits.items():",
        "for rule, image in list(hits.items())[:1]:",
        _test("held_out_small.py::test_an_image_of_two_rules_is_found_by_both_and_leaks_once"),
    ),
    # Archives.
    Fault(
        "what follows the end of a tar is passed over",
        "_tar_members",
        "            _check_tar_end(file, tar.offset)\n",
        "",
        _test("archives.py::test_two_joined_tars_and_a_damaged_header_are_refused"),
    ),
    Fault(
        "another member of a tar is given",
        "tar_member",
        "if member is None or member.name != name or not",
        "if member is None or not",
        _test("archives.py::test_a_tar_that_changed_after_planning_gives_a_reason_and_never_other_bytes"),
    ),
    Fault(
        "of two members of one name the last one is given",
        "_zip_members",
        "if info.filename == last:",
        "if info.filename is None:",
        _test("archives.py::test_members_of_one_name_are_refused"),
    ),
)
