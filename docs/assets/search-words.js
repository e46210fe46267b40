// The search looks for words that begin with what is typed, in titles above all: "a" finds Accounting, "to" torchtitan,
// and the hyphens of an option leave its word out. Such words and hyphens do not reach it.
(() => {
  const small = new Set(
    ("a an and are as at be but by can do does for from had has have how i if in into is it its me my no not of on or " +
      "our should so than that the their them then there these they this to was we were what when where which while " +
      "who why will with you your").split(" "));
  const post = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (message, ...others) {
    if (typeof message.data === "string") {
      const words = message.data.split(/\s+/).map(word => word.replace(/^--+/, ""));
      const kept = words.filter(word => word && !small.has(word.toLowerCase()));
      message = {...message, data: (kept.length ? kept : words).join(" ")};
    }
    return post.call(this, message, ...others);
  };
})();
