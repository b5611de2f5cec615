autoload :Inner, "#{__dir__}/inner"
def load_inner
  Inner
end
load_inner
