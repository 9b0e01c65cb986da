// What readers look for is in guides more often than in internals. The numbers are those of Sphinx.
var Scorer = {
  score: ([page, , , , score, , kind]) => {
    const places = [["docs/start/questions", 20], ["docs/start/", 12], ["docs/guide/", 8], ["docs/troubleshooting", 8],
      ["docs/design/", -4], ["CHANGELOG", -8], ["docs/reference/api", kind === "text" ? -8 : 0]];
    const [, more] = places.find(([start]) => page.startsWith(start)) ?? ["", 0];
    return score + more;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
