# frozen_string_literal: true

module Tracepoint
  module Agent
    # Names of classes and methods that the hook saw, without calling the program's methods.
    module Names
      MODULE_NAME = Module.instance_method(:name)
      MODULE_METHOD = Module.instance_method(:instance_method)
      OBJECT_ID = Object.instance_method(:to_s)
      OBJECT_CLASS = Kernel.instance_method(:class)

      module_function

      def of(from, count)
        (from...from + count).lazy.map { |index| entry(index) }.take_while { |found| found }.to_a
      end

      def entry(index)
        return { index: 0, kind: 0, owner: nil, singleton: false, name: nil, path: nil, line: nil } if index.zero?

        kind, owner, name, definer = Native.method_at(index)
        return nil unless kind

        text, singleton = owner ? owner_text(owner) : [nil, false]
        path, line = kind == 1 ? place(definer, name) : nil
        { index: index, kind: kind, owner: text, singleton: singleton, name: name ? name.to_s : nil, path: path, line: line }
      end

      def owner_text(owner)
        attached = Native.attached(owner)
        return [module_text(attached), true] if module?(attached)
        return ["#<#{module_text(OBJECT_CLASS.bind_call(attached))}:0x…>", true] if attached

        [module_text(owner), false]
      end

      def method_text(owner, name)
        text, singleton = owner_text(owner)
        "#{text}#{singleton ? "." : "#"}#{name}"
      end

      def module_text(found)
        MODULE_NAME.bind_call(found) || refinement_text(found) || OBJECT_ID.bind_call(found)
      end

      def refinement_text(found)
        refined, place = Native.refinement(found)
        refined && place && "#<refinement:#{module_text(refined)}@#{module_text(place)}>"
      end

      def module?(value)
        Module === value
      end

      def place(owner, name)
        MODULE_METHOD.bind_call(owner, name).source_location
      rescue NameError, TypeError # removed in the meantime
        nil
      end
    end
  end
end
