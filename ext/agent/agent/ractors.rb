# frozen_string_literal: true

module Tracepoint
  module Agent
    # Effects of Ractors on the hooks of the main one. Neither is ours: TracePoint, and
    # ObjectSpace.trace_object_allocations, have it too.
    #
    # Ruby 3.0 to 3.2 crash where one begins while there is a hook on collections or new
    # objects: its first objects are made before it has a frame. So there such hooks go
    # before a Ractor is made, and are not put where there are some.
    #
    # Where one is collected (ractor_free, vm_trace.c: rb_hook_list_free), Ruby forgets
    # which events the other ones' hooks are on. They are silent until a hook is put
    # there or taken away.
    module Ractors
      FRAGILE = RUBY_VERSION >= "3.0" && RUBY_VERSION < "3.3"
      PERIOD = RUBY_VERSION >= "3.0" ? 0.05 : nil
      @watch = nil

      module_function

      # From here on such hooks go when a Ractor is made, until `unwatch`.
      #
      # @return whether they can be had at all
      def watch
        return true unless FRAGILE

        unwatch
        Native.inner(true)
        @watch = TracePoint.new(:call) { Native.inner(false) }
        @watch.enable(target: Ractor.method(:new))
        Native.inner(false) if Facts.ractors > 1
        Facts.ractors == 1
      end

      # Run every PERIOD s while something is armed: hooks that Ruby had dropped work again,
      # and the gap is reported. `beat` is a call and makes an object.
      def renew
        before = Native.beats
        beat
        Native.renew(before)
        note_others
      end

      # Hooks belong to the main Ractor; what other Ractors do is not seen.
      def note_others
        Native.others if Facts.ractors > 1
      end

      def beat
        Object.new
      end

      def unwatch
        @watch&.disable
        @watch = nil
      end
    end
  end
end
